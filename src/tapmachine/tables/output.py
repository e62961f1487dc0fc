"""Output files: arrays, or tables in the format of the input."""

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tapmachine.data.columns import RawColumn
from tapmachine.data.files import write_atomically
from tapmachine.data.text import TextLayout, as_cells, columns_as_cells, to_text
from tapmachine.tables.codec import EncodedData
from tapmachine.tables.frames import to_parquet
from tapmachine.tables.schema import Schema


def save_rows(
    path: Path,
    values: Tensor | np.ndarray[Any, Any],
    layout: TextLayout | None = None,
    schema: Schema | None = None,
    observed: EncodedData | None = None,
) -> None:
    """Write rows to a file. Text files contain enough digits to restore floating-point numbers exactly.

    Args:
        path: Output file. The suffix determines the format.
        values: Rows to write, (N, n).
        layout: Header, separator and index of a text file (default: comma-separated, without header or index).
        schema: Schema that decodes the rows of a table (default: rows are written as numbers).
        observed: Data whose observed values are written unchanged (default: none).
    """
    array = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    if path.suffix == ".npy":
        content = io.BytesIO()
        np.save(content, array)
        write_atomically(path, content.getvalue())
        return
    if schema is not None:
        by_name = {column.name: column for column in (() if observed is None else observed.columns)}
        columns = [by_name[c.name].filled_from(c) if c.name in by_name else c for c in schema.decode(array)]
        save_columns(path, columns, layout)
        return
    known = np.full((0, 0), np.nan) if observed is None else np.asarray(observed.rows)
    if path.suffix == ".parquet":
        array = array if observed is None else np.where(np.isnan(known), array, known)
        names = (layout and layout.column_names()) or tuple(map(str, range(array.shape[1])))
        save_columns(path, [RawColumn(n, "float", z, "float64") for n, z in zip(names, array.T, strict=True)], layout)
        return
    cells, known_cells = as_cells(array), as_cells(known)
    for row, column in np.argwhere(~np.isnan(known)):
        cells[row][column] = known_cells[row][column]
    _save_cells(path, cells, layout)


def save_columns(path: Path | None, columns: Sequence[RawColumn], layout: TextLayout | None = None) -> None:
    """Write the columns of a table to a .csv, .tsv or .parquet file, with the row names of the layout.

    If the path is None, comma-separated values are printed.
    """
    layout = layout or TextLayout()
    of_index = (layout.names or ("",) * layout.n_index)[: layout.n_index]
    named = replace(layout, names=(*of_index, *(column.name for column in columns)))
    if path is None:
        sys.stdout.write(to_text(columns_as_cells(columns), replace(named, separator=",")))
    elif path.suffix == ".parquet":
        write_atomically(path, to_parquet(columns, layout))
    else:
        _save_cells(path, columns_as_cells(columns), named)


def _save_cells(path: Path, cells: list[list[str]], layout: TextLayout | None) -> None:
    layout = layout or TextLayout()
    if path.suffix == ".tsv":
        layout = replace(layout, separator="\t")
    elif layout.separator == "\t":
        layout = replace(layout, separator=",")
    write_atomically(path, to_text(cells, layout).encode())
