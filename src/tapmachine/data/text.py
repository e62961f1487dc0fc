"""Functions that read .csv files with column names, index columns and missing values, and write in the same layout."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tapmachine.data.columns import RawColumn, check_digits, is_whole
from tapmachine.data.errors import DataError, DataWarning, warn

Array = np.ndarray[Any, Any]

SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "vertical bars", ",": "commas", " ": "spaces"}  # in this order
N_INSPECTED = 200  # number of rows from which the separator is inferred
BLANKS = " \t\u00a0"  # around cells
UNNAMED = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # names that pandas assigns to columns of an unnamed index
FEWEST_ROWS = 5  # minimum number of rows that show that a first line of numbers is a header

# Cells that represent missing values, as in pandas.read_csv.
GAPS = frozenset(
    [
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
        "",
    ]
)
TRUTH = {"True": True, "False": False}

DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}([. '\u00a0\u202f]\d{3})+|\d*)(,\d+)?([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?(\d{1,3}([, '\u00a0\u202f]\d{3})+|\d+)(\.\d*)?([eE][+-]?\d+)?")
GROUPS = {DECIMAL_COMMA: r"[. '\u00a0\u202f]", THOUSANDS: r"[, '\u00a0\u202f]"}  # marks between groups of digits
Style = re.Pattern[str] | None  # None for numbers as in Python
STYLES: tuple[Style, ...] = (None, THOUSANDS, DECIMAL_COMMA)

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
        notes: Notes on how the file was read.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    index: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def n_index(self) -> int:
        """Number of index columns."""
        return len(self.index[0]) if self.index else 0

    def column_names(self) -> tuple[str, ...] | None:
        """Return the names of the data columns; None if the file has no header."""
        return None if self.names is None else self.names[self.n_index :]


def from_csv(
    content: bytes, path: Path, as_table: bool = False, texts: Collection[str] = ()
) -> tuple[Array | list[RawColumn], TextLayout]:
    """Read a text file with or without a header, whose separator is inferred from its lines.

    The result is a list of columns if the file has columns of text or booleans, or if `as_table` is True. Otherwise,
    the result is an array of numbers. Cells listed in `GAPS` become NaN. Columns named in `texts` are read as text.
    """
    separator, lines = _lines(content, path)
    table = [cells for _, cells in lines]
    width = len(table[0])
    for line_number, line in lines:
        if len(line) != width:
            raise DataError(f"{path}: line {line_number} has {len(line)} columns, but the first has {width}")
    has_header, notes = _has_header(table, path)
    names = tuple(table[0]) if has_header else None
    # Unnamed leading columns are those to which pandas and R write row names.
    n_index = next((width for width, name in enumerate(names or ()) if not UNNAMED.fullmatch(name)), 0)
    if n_index:
        which = "first column" if n_index == 1 else f"first {n_index} columns"
        notes.append(f"{path}: {which} used as row names; to use it as data, name it in the header")
    below = lines[has_header:]
    if not below:
        raise DataError(f"{path}: the file has a header, but no rows")
    columns = list(zip(*(cells for _, cells in below), strict=True))
    index, columns = tuple(zip(*columns[:n_index], strict=True)), columns[n_index:]
    labels = list(map(str, range(len(columns)))) if names is None else list(names[n_index:])
    numbers = _columns_of_numbers(
        [() if label in texts else cells for label, cells in zip(labels, columns, strict=True)], separator
    )
    raw = []
    for place, (label, cells, found) in enumerate(zip(labels, columns, numbers, strict=True)):
        if found is not None and len(found.values):
            kind = "int" if is_whole(found.values) else "float"
            raw.append(RawColumn(label, kind, found.values, kind))
            if kind == "float" and all(cell.isdecimal() for cell in cells if cell not in GAPS):
                check_digits(label, found.values)
            if found.example is not None:
                value = f"{found.values[found.example]:.12g}"
                notes.append(f"{path}: {cells[found.example]!r} in column {label} is read as {value}, others likewise")
            continue
        known = {cell for cell in cells if cell not in GAPS}
        if known <= TRUTH.keys() and label not in texts:
            raw.append(RawColumn.of(label, [TRUTH.get(cell) for cell in cells], "bool"))
        elif names is None or (label not in texts and any(_number(cell) is not None for cell in known)):
            of_text = (row for row, cell in enumerate(cells) if cell not in GAPS and _number(cell) is None)
            row = next(of_text, 0)  # or numbers of several styles
            where = f"line {below[row][0]}, column {place + 1 + n_index}{'' if names is None else f' ({label})'}"
            remedy = "text requires a header with column names" if names is None else "convert it to one type"
            raise DataError(f"{path}: {where} is {cells[row]!r} in a column of numbers; {remedy}")
        else:
            raw.append(RawColumn.of(label, [None if cell in GAPS else cell for cell in cells], "text"))
    layout = TextLayout(separator, names, index, tuple(notes))
    if names is not None and (as_table or any(column.type not in ("int", "float") for column in raw)):
        return raw, layout
    return np.column_stack([column.values for column in raw]), layout


def _lines(content: bytes, path: Path) -> tuple[str, list[tuple[int, list[str]]]]:
    """Return the separator of a text file, and the number and cells of each row; quoted cells may span several lines.

    The separator gives most rows the same number of cells, more than one.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8: {error}") from None
    if text.startswith(">"):
        raise DataError(f"{path}: {ALIGNMENT}")
    separator, most = ",", 0.0
    for mark in SEPARATORS:
        try:
            widths = Counter(len(cells) for _, cells in islice(_rows(text, mark), N_INSPECTED))
        except csv.Error:
            continue
        width, count = widths.most_common(1)[0] if widths else (0, 0)
        if width > 1 and count / widths.total() > most and not (mark == " " and most):  # words may contain spaces
            separator, most = mark, count / widths.total()
    try:
        lines = list(_rows(text, separator))
    except csv.Error as error:
        raise DataError(f"{path}: not a table separated by {SEPARATORS[separator]}: {error}") from None
    if len(lines) and len(lines[0][1]) > 1:
        lines = [(line_number, cells) for line_number, cells in lines if cells != [""]]  # blank lines
    if not lines:
        raise DataError(f"{path}: the file is empty")
    return separator, lines


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    line_number = 1
    for row in reader:
        cells = [cell.strip(BLANKS) for cell in row]
        if separator == " " and cells[-1:] == [""]:
            cells.pop()
        if cells:
            yield line_number, cells
        line_number = reader.line_num + 1


def _has_header(table: Sequence[Sequence[str]], path: Path) -> tuple[bool, list[str]]:
    """Return whether the first line is a header, and notes on the decision.

    Headers contain words, the column numbers that pandas writes above an index, or increasing numbers, such as years,
    that lie far outside the numbers below.

    Raises:
        DataError: If the first line contains words and numbers, and may be a header or a row.
    """
    first, rest = table[0], table[1 : N_INSPECTED + 1]
    values = [None if cell in GAPS else _number(cell) for cell in first]
    above = [value for value in values if value is not None]
    has_words = any(cell not in GAPS and value is None for cell, value in zip(first, values, strict=True))
    if not above:
        return has_words, []
    if len(first) > 2 and not first[0] and list(first[1:]) == [str(column) for column in range(len(first) - 1)]:
        return all(row and row[0] for row in rest), []  # otherwise the first column may have missing values
    below = [_column_of_numbers(cells) for cells in zip(*rest, strict=True)]
    under = [own.values for own, value in zip(below, values, strict=False) if own is not None and value is not None]
    start = f"{path}: the first line ({', '.join(first[:3])}{', …' if len(first) > 3 else ''})"
    is_ordered = len(first) > 1 and above == sorted({*above}) and len(under) == len(above)
    if is_ordered and len(rest) >= FEWEST_ROWS and all(map(_is_far, above, under)):
        return True, [f"{start} is used as column names, since its numbers are far outside the columns"]
    if has_words:
        raise DataError(f"{start} contains words and numbers; use only words as column names")
    is_count = len(first) > 3 and above == [*range(len(first))]
    if is_count or (is_ordered and is_whole(np.array(above)) and not any(map(is_whole, under))):
        warn(f"{start} is read as data; if it is a header, use words as column names", DataWarning)
    return False, []


def _is_far(value: float, column: Array) -> bool:
    """Return whether a number is outside the range of a column by more than the width of the range."""
    low, high = np.nanmin(column), np.nanmax(column)
    return bool(value < 2 * low - high or value > 2 * high - low)


# ----- numbers


class Numbers(NamedTuple):
    """Values of a column of numbers, the style in which they are written, and the first row that is not plain."""

    values: Array
    style: Style
    example: int | None


def _columns_of_numbers(columns: Sequence[Sequence[str]], separator: str) -> list[Numbers | None]:
    """Return the numbers of the columns that contain only numbers and gaps, and None for other columns.

    Points are decimal points, unless a column of the file can be read only with decimal commas. Of columns such as
    1,234, the commas are decimal commas unless commas separate the cells.
    """
    styles = STYLES if separator == "," else (None, DECIMAL_COMMA, THOUSANDS)
    found = [_column_of_numbers(cells, styles) for cells in columns]
    if any(column is not None and column.style is DECIMAL_COMMA for column in found):
        found = [_column_of_numbers(cells, (DECIMAL_COMMA, None, THOUSANDS)) for cells in columns]
    return found


def _column_of_numbers(cells: Sequence[str], styles: Sequence[Style] = STYLES) -> Numbers | None:
    """Return the numbers of a column in the first style that all of its cells have, or None."""
    known = [cell for cell in cells if cell not in GAPS]
    percent = "%" if known and all(cell.endswith("%") for cell in known) else ""
    for style in styles:
        values = [math.nan if cell in GAPS else _number(cell.removesuffix(percent), style) for cell in cells]
        if None not in values:
            is_plain = style is None and not percent
            other = (row for row, cell in enumerate(cells) if cell not in GAPS and _number(cell, None) is None)
            return Numbers(np.array(values, np.float64), style, None if is_plain else next(other, None))
    return None


def _number(cell: str, *styles: Style) -> float | None:
    """Return the number in a cell in the first style that applies, by default in any style; None for text."""
    for style in styles or STYLES:
        if style is not None and style.fullmatch(cell) is None:
            continue
        points = cell if style is None else re.sub(GROUPS[style], "", cell).replace(",", ".")
        with suppress(ValueError):
            return None if "_" in cell else float(points)  # Python reads 1_0 as 10
    return None


# ----- writing


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
