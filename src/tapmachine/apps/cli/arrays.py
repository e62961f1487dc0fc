"""Results of commands as files: .npy, or text in the form of the data that they come from"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tapmachine.data.columns import Schema
    from tapmachine.data.text import TextLayout

SUFFIXES = (".npy", ".csv", ".tsv")


def default_target(stem: str, source: str) -> Path:
    """A file in the current folder for results on a source: text for text, otherwise .npy."""
    from tapmachine.data.formats import is_text

    suffix = ".npy" if not is_text(source) else ".tsv" if source.removesuffix(".gz").endswith(".tsv") else ".csv"
    path = Path(stem + suffix)
    if path.absolute() == Path(source).absolute():
        raise ValueError(f"{source}: is where results go by default; give another file by --out")
    return path


def check_targets(*targets: tuple[Path | None, tuple[str, ...]]) -> None:
    """Says before the work what could not be written after it."""
    given = [(path, suffixes) for path, suffixes in targets if path is not None]
    for path, suffixes in given:
        if path.suffix not in suffixes or path.is_dir():
            raise ValueError(f"{path}: must be a {' or '.join(suffixes)} file, such as results{suffixes[0]}")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}")
    paths = [path.absolute() for path, _ in given]
    if len(set(paths)) < len(paths):
        raise ValueError("results of two kinds cannot go to one file; give them different names")


def save_array(
    path: Path,
    values: "Tensor",
    layout: "TextLayout | None" = None,
    known: "np.ndarray[Any, Any] | None" = None,
    schema: "Schema | None" = None,
) -> None:
    """Writes rows to an .npy file, or to a text file with the digits that it takes to read the same numbers.

    Args:
        path: of the file, whose suffix decides.
        values: (N, n).
        layout: header, separator and index of a text file, as those of the data have them.
        known: values that a text file holds in place of others, in their own precision; NaN for none.
        schema: of a table with text, whose encoded rows are written as its cells.
    """
    import numpy as np

    from tapmachine.data.text import columns_as_cells
    from tapmachine.machine.files import write_atomically

    array = values.cpu().numpy()
    if schema is not None and path.suffix != ".npy":
        array = array if known is None else np.where(np.isnan(known), array, known)
        write_atomically(path, _in_layout(path, columns_as_cells(schema.decode(array)), layout).encode())
        return
    if path.suffix == ".npy":
        content = io.BytesIO()
        np.save(content, array)
        write_atomically(path, content.getvalue())
    else:
        write_atomically(path, _text(path, array, layout, known).encode())


def _text(
    path: Path,
    array: "np.ndarray[Any, Any]",
    layout: "TextLayout | None",
    known: "np.ndarray[Any, Any] | None",
) -> str:
    import numpy as np

    from tapmachine.data.text import as_cells

    cells = as_cells(array)
    if known is not None:
        own = as_cells(known)
        for row, column in np.argwhere(~np.isnan(known)):
            cells[row][column] = own[row][column]
    return _in_layout(path, cells, layout)


def _in_layout(path: Path, cells: list[list[str]], layout: "TextLayout | None") -> str:
    from dataclasses import replace

    from tapmachine.data.text import TextLayout, to_text

    layout = layout or TextLayout()
    if path.suffix == ".tsv":
        layout = replace(layout, separator="\t")
    elif layout.separator == "\t":
        layout = replace(layout, separator=",")
    return to_text(cells, layout)
