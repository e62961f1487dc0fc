"""Output files of commands: .npy files, or tables in the format of the input."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tapmachine.data.columns import RawColumn
    from tapmachine.data.text import TextLayout
    from tapmachine.tables.schema import Schema

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npy", *TABLES)


def default_target(stem: str, source: str) -> Path:
    """Return the default output file: text for text input, Parquet for Parquet input, otherwise .npy."""
    from tapmachine.data.formats import is_text

    name, suffix = source.removesuffix(".gz"), ".npy"
    if source.endswith(".parquet"):
        suffix = ".parquet"
    elif is_text(source):
        suffix = ".tsv" if name.endswith(".tsv") else ".csv"
    path = Path(stem + suffix)
    if path.absolute() == Path(source).absolute():
        raise ValueError(f"{source}: the input is also the default output file; choose another output file with --out")
    return path


def check_targets(*targets: tuple[Path | None, tuple[str, ...]]) -> None:
    """Check output paths before the computation. Raises ValueError if a path cannot be written."""
    given = [(path, suffixes) for path, suffixes in targets if path is not None]
    for path, suffixes in given:
        if path.suffix not in suffixes or path.is_dir():
            raise ValueError(f"{path}: expected a {' or '.join(suffixes)} output file, such as results{suffixes[0]}")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: directory {path.parent} not found")
    paths = [path.absolute() for path, _ in given]
    if len(set(paths)) < len(paths):
        raise ValueError("two output options have the same path; choose different files")


def save_array(
    path: Path,
    values: "Tensor | np.ndarray[Any, Any]",
    layout: "TextLayout | None" = None,
    known: "np.ndarray[Any, Any] | None" = None,
    schema: "Schema | None" = None,
    observed: "Sequence[RawColumn]" = (),
) -> None:
    """Write rows to a file. Text files contain enough digits to restore floating-point numbers exactly.

    Args:
        path: Output file. The suffix determines the format.
        values: Rows to write, (N, n).
        layout: Header, separator and index of a text file (default: comma-separated, without header or index).
        known: Observed values, which are written unchanged, with NaN for all other values (default: none).
        schema: Schema that decodes the rows of a table (default: rows are written as numbers).
        observed: Columns of the input table, whose observed cells are written unchanged (default: none).
    """
    import numpy as np

    from tapmachine.data.columns import RawColumn
    from tapmachine.data.text import as_cells
    from tapmachine.machine.files import write_atomically

    array = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    if path.suffix == ".npy":
        content = io.BytesIO()
        np.save(content, array)
        write_atomically(path, content.getvalue())
    elif schema is not None:
        by_name = {column.name: column for column in observed}
        columns = [by_name[c.name].in_place_of(c) if c.name in by_name else c for c in schema.decode(array)]
        save_columns(path, columns, layout)
    elif path.suffix == ".parquet":
        array = array if known is None else np.where(np.isnan(known), array, known)
        names = (layout and layout.column_names()) or tuple(str(column) for column in range(array.shape[1]))
        columns = [RawColumn(name, "float", values, "float64") for name, values in zip(names, array.T, strict=True)]
        save_columns(path, columns, layout)
    else:
        cells = as_cells(array)
        if known is not None:
            observed_cells = as_cells(known)
            for row, column in np.argwhere(~np.isnan(known)):
                cells[row][column] = observed_cells[row][column]
        _save_cells(path, cells, layout)


def save_columns(path: Path | None, columns: "Sequence[RawColumn]", layout: "TextLayout | None" = None) -> None:
    """Write the columns of a table to a .csv, .tsv or .parquet file, with the row names of the layout.

    If the path is None, comma-separated values are printed.
    """
    from dataclasses import replace

    from tapmachine.data.text import TextLayout, columns_as_cells, to_text
    from tapmachine.machine.files import write_atomically
    from tapmachine.tables.frames import to_parquet

    layout = layout or TextLayout()
    of_index = (layout.names or ("",) * layout.n_index)[: layout.n_index]
    named = replace(layout, names=(*of_index, *(column.name for column in columns)))
    if path is None:
        sys.stdout.write(to_text(columns_as_cells(columns), replace(named, separator=",")))
    elif path.suffix == ".parquet":
        write_atomically(path, to_parquet(columns, layout))
    else:
        _save_cells(path, columns_as_cells(columns), named)


def _save_cells(path: Path, cells: list[list[str]], layout: "TextLayout | None") -> None:
    from dataclasses import replace

    from tapmachine.data.text import TextLayout, to_text
    from tapmachine.machine.files import write_atomically

    layout = layout or TextLayout()
    if path.suffix == ".tsv":
        layout = replace(layout, separator="\t")
    elif layout.separator == "\t":
        layout = replace(layout, separator=",")
    write_atomically(path, to_text(cells, layout).encode())
