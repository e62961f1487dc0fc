"""Functions that read .csv files with column names, index columns and missing values, and write in the same layout."""

import csv
import io
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.columns import RawColumn
from tapmachine.data.errors import DataError

Array = np.ndarray[Any, Any]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", " ": "spaces"}
UNNAMED = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # names that pandas assigns to columns of an unnamed index

GAPS = ("", "NA", "N/A", "NaN", "nan", "null")  # cells that represent missing values in tables with text
WHOLE = re.compile(r"[+-]?\d+")  # integers
TRUTH = {"True": True, "False": False}
MIN_TEXT_CELLS = 2  # minimum number of cells in a column of text

ENCODE = "encode text as numbers (categories as 0, 1, 2, …), or drop the column"
COMPLETE_ROWS = (
    "expected complete rows; remove incomplete rows, or fill them in with `tapmachine impute` and a trained machine"
)
ALIGNMENT = "is a sequence alignment; save it as integers 0, 1, 2, … in a .npy file, and use --visible categorical"


@dataclass(frozen=True)
class TextLayout:
    """Separator, column names and index of a text file, used to write results in the same layout.

    Attributes:
        separator: Character that separates cells.
        names: Names of all columns, with index columns first; None if the file has no header.
        index: Cells of the index columns in each row.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    index: tuple[tuple[str, ...], ...] = ()

    @property
    def n_index(self) -> int:
        """Number of index columns."""
        return len(self.index[0]) if self.index else 0

    def column_names(self) -> tuple[str, ...] | None:
        """Return the names of the data columns; None if the file has no header."""
        return None if self.names is None else self.names[self.n_index :]


def from_csv(
    content: bytes, path: Path, gaps: bool, as_table: bool = False, texts: Collection[str] = ()
) -> tuple[Array | list[RawColumn], TextLayout]:
    """Read a text file with or without a header, whose separator is inferred from the first line.

    The result is a list of columns if the file has a header and columns of text, or if `as_table` is True. Otherwise,
    the result is an array of numbers. Columns named in `texts` are read as text.
    """
    separator, numbered = _cells(content, path, gaps)
    table = [cells for _, cells in numbered]
    names = tuple(table[0]) if _is_header(table, gaps) else None
    # Unnamed leading columns are those to which pandas and R write row names.
    n_index = next((width for width, name in enumerate(names or ()) if not UNNAMED.fullmatch(name)), 0)
    for line_number, cells in numbered:
        if len(cells) != len(table[0]):
            raise DataError(f"{path}: line {line_number} has {len(cells)} columns, but the first has {len(table[0])}")
    below = numbered[0 if names is None else 1 :]
    layout = TextLayout(separator, names, tuple(tuple(cells[:n_index]) for _, cells in below) if n_index else ())
    columns = [] if names is None else _text_table(below, layout, path, as_table, texts)
    if columns:
        return columns, layout
    rows = []
    for line_number, cells in below:
        values = [float("nan") if gaps and not cell else _parsed(cell) for cell in cells[n_index:]]
        if None in values:
            column = n_index + values.index(None)
            place = f"{path}: line {line_number}, column {column + 1}{f' ({names[column]})' if names else ''}"
            raise DataError(f"{place} {_complaint(cells[column], separator)}")
        rows.append(values)
    return np.array(rows, np.float64), layout


def _text_table(
    below: Sequence[tuple[int, Sequence[str]]], layout: TextLayout, path: Path, as_table: bool, texts: Collection[str]
) -> list[RawColumn]:
    """Return the columns below a header, or an empty list if none of them contains text and `as_table` is False.

    Raises:
        DataError: If a column contains both text and numbers.
    """
    columns, has_text, mixed = [], as_table, ""
    for place, name in enumerate(layout.names or ()):
        if place < layout.n_index:
            continue
        cells = [None if row[place] in GAPS else row[place] for _, row in below]
        seen = [cell for cell in cells if cell is not None]
        numbers = [cell for cell in seen if _parsed(cell) is not None]
        if seen and {*seen} <= TRUTH.keys() and name not in texts:
            has_text = True
            columns.append(RawColumn.of(name, [None if cell is None else TRUTH[cell] for cell in cells], "bool"))
        elif seen and (not numbers or name in texts):
            has_text = has_text or len(seen) >= MIN_TEXT_CELLS
            columns.append(RawColumn.of(name, cells, "text"))
        elif len(numbers) < len(seen):
            row = next(row for row, cell in enumerate(cells) if cell is not None and _parsed(cell) is None)
            mixed = mixed or f"line {below[row][0]}, column {place + 1} ({name}) is {cells[row]!r}"
        else:
            kind = "int" if seen and all(WHOLE.fullmatch(cell) for cell in seen) else "float"
            values = np.array([math.nan if cell is None else float(cell) for cell in cells])
            columns.append(RawColumn(name, kind, values, kind))
    if has_text and mixed:
        raise DataError(f"{path}: {mixed} in a column of numbers; convert the column to one type")
    return columns if has_text else []


def columns_as_cells(columns: Sequence[RawColumn]) -> list[list[str]]:
    """Convert columns to the cells of a text file, with empty cells for missing values."""
    texts = []
    for column in columns:
        convert = {"bool": bool, "int": int}.get(column.type, lambda value: value)
        texts.append(
            [
                "" if gap else str(convert(value)).removesuffix(".0")
                for value, gap in zip(column.values.tolist(), column.gaps, strict=True)
            ]
        )
    return [list(row) for row in zip(*texts, strict=True)]


def _cells(content: bytes, path: Path, gaps: bool) -> tuple[str, list[tuple[int, list[str]]]]:
    """Return the separator of a text file, and the number and cells of each line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8: {error}") from None
    if text.startswith(">"):
        raise DataError(f"{path}: {ALIGNMENT}")
    numbered = [(index, line) for index, line in enumerate(text.splitlines(), 1) if (line if gaps else line.strip())]
    lines = [line for _, line in numbered]
    if not lines:
        raise DataError(f"{path}: the file is empty")
    is_tabbed = path.name.removesuffix(".gz").endswith(".tsv")
    separator = "\t" if is_tabbed else next((mark for mark in SEPARATORS if mark in lines[0]), ",")
    table = [
        [cell.strip() for cell in row if cell.strip() or separator != " "]
        for row in csv.reader(lines, delimiter=separator)
    ]
    if len(table) < len(lines):
        raise DataError(f"{path}: a quoted cell spans several lines; expected one line per row")
    return separator, [(line_number, cells) for (line_number, _), cells in zip(numbered, table, strict=True)]


def _is_header(table: Sequence[Sequence[str]], gaps: bool) -> bool:
    """Return whether the first line is a header, which contains no numbers or the column numbers written by pandas."""
    first = table[0]
    if len(table) < 2:
        return False
    if len(first) > 2 and not first[0] and list(first[1:]) == [str(column) for column in range(len(first) - 1)]:
        return all(row and row[0] for row in table[1:])  # otherwise the first column may have missing values
    named = [cell for cell in first if cell or not gaps]  # a row of missing values is not a header
    return bool(named) and all(_parsed(cell) is None for cell in named)


def _complaint(cell: str, separator: str) -> str:
    if not cell:
        return f"is empty; {COMPLETE_ROWS}"
    if any(mark in cell for mark in SEPARATORS if mark != " "):
        remedy = f"columns are separated by {SEPARATORS[separator]}; use decimal points"
    else:
        remedy = ENCODE
    return f"is {cell!r}, not a number; {remedy}"


def _parsed(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_0 as 10
    except ValueError:
        return None


def as_cells(values: Array) -> list[list[str]]:  # (N, n)
    """Convert numbers to text, with enough digits to restore them exactly."""
    return [[cell.removesuffix(".0") for cell in row] for row in values.astype(str).tolist()]


def to_text(cells: Sequence[Sequence[str]], layout: TextLayout) -> str:
    """Format cells as the content of a text file with a given layout."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=layout.separator, lineterminator="\n")
    if layout.names is not None:
        writer.writerow(layout.names)
    writer.writerows([*index, *row] for index, row in zip(layout.index or [()] * len(cells), cells, strict=True))
    return text.getvalue()
