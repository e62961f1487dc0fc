"""Kinds of columns: inference from the values, and encoding of cells as numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapmachine.data.columns import NUMBERS, RawColumn, check_numbers

Array = np.ndarray[Any, Any]

KINDS = ("real", "count", "binary", "categorical")  # in the order of encoded rows

MOST_CATEGORIES = 256  # a column with more distinct values is probably an identifier
LARGEST_COUNT = 100  # columns with larger integers are real
LEAST_DISPERSION = (
    0.8  # minimum variance-to-mean ratio of counts; the ratio is 1 for a Poisson distribution and larger for mixtures
)
NAMED = 5  # maximum number of categories listed in descriptions and messages


@dataclass(frozen=True)
class Column:
    """Kind and encoding of a column of a table.

    Attributes:
        name: Name of the column.
        kind: Kind of the column: real, count, binary or categorical.
        type: Type of the cells: bool, int, float, text or category.
        dtype: Name of the dtype in pandas, polars or the file.
        why: Reason for the kind.
        shift: Mean of a real column. Encoded values x correspond to the values shift + scale·x.
        scale: Standard deviation of a real column.
        categories: Values of a binary or categorical column, in the order of their codes.
        ordered: Whether the categories are ordered, which does not affect the model.
    """

    name: str
    kind: str
    type: str
    dtype: str
    why: str
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[Any, ...] = ()
    ordered: bool = False

    @property
    def width(self) -> int:
        """Number of components, which is the number of categories for a categorical column and 1 for other columns."""
        return len(self.categories) if self.kind == "categorical" else 1

    def describe(self) -> str:
        """Describe the kind of the column and the reason for it in one line."""
        named = ", ".join(str(value) for value in self.categories[:NAMED])
        named += f" and {len(self.categories) - NAMED} more" if len(self.categories) > NAMED else ""
        order = "ordered " if self.ordered else ""
        what = {
            "real": "real, standardized",
            "count": "count",
            "binary": f"binary ({named})",
            "categorical": f"categorical, {len(self.categories)} {order}categories ({named})",
        }[self.kind]
        return f"{self.name}: {what}: {self.why}"

    def encode(self, column: RawColumn) -> Array:  # (N,) -> (N, width)
        """Encode cells as numbers, with NaN for missing values.

        Raises:
            ValueError: If a cell does not match the kind of the column.
        """
        check_numbers(column)
        if self.kind in ("binary", "categorical"):
            return self._encode_categories(column)
        if column.type not in NUMBERS and column.gaps.all():
            return np.full((len(column.values), 1), np.nan)
        if column.type not in NUMBERS:
            raise ValueError(f"column {self.name!r} contains {column.type}; expected numbers, as in training")
        if self.kind == "count":
            self._reject(column, (column.values < 0) | (column.values != np.round(column.values)), "expected a count")
        return ((column.values - self.shift) / self.scale)[:, None]

    def _encode_categories(self, column: RawColumn) -> Array:
        codes = {value: code for code, value in enumerate(self.categories)}
        gaps = column.gaps
        cells = [None if gap else value for value, gap in zip(column.values.tolist(), gaps, strict=True)]
        known = np.array([gap or cell in codes for cell, gap in zip(cells, gaps, strict=True)], bool)
        named = ", ".join(repr(value) for value in self.categories[:NAMED])
        more = f" and {len(self.categories) - NAMED} more" if len(self.categories) > NAMED else ""
        self._reject(column, ~known, f"which is not a category of the training data; expected {named}{more}")
        code = np.array([0 if cell is None else codes[cell] for cell in cells], np.int64)
        rows = code[:, None].astype(float) if self.kind == "binary" else np.eye(self.width)[code]
        rows[gaps] = np.nan
        return rows

    def _reject(self, column: RawColumn, is_bad: Array, rule: str) -> None:
        bad = np.flatnonzero(is_bad & ~column.gaps)
        if len(bad):
            value = column.values.tolist()[bad[0]]
            raise ValueError(f"column {self.name!r} is {value!r} in row {bad[0]}, {rule}")

    def decode(self, rows: Array) -> RawColumn:  # (N, width) -> (N,)
        """Decode encoded values, or means of encoded values, to cells."""
        gaps = np.asarray(np.isnan(rows).any(axis=1))
        if self.kind in ("binary", "categorical"):
            filled = np.where(gaps[:, None], 0.0, rows)
            code = filled[:, 0] > 0.5 if self.kind == "binary" else filled.argmax(1)
            code = np.minimum(code.astype(np.int64), len(self.categories) - 1)  # a constant column has one category
            cells = [None if gap else self.categories[c] for c, gap in zip(code.tolist(), gaps, strict=True)]
            return self._column(cells)
        values = self.shift + self.scale * rows[:, 0]
        if self.kind == "count" or self.type in ("bool", "int"):
            values = np.round(values)
        if self.kind == "count" or self.dtype.lower().startswith("uint"):
            values = np.maximum(values, 0)
        if self.type == "bool":
            values = np.clip(values, 0, 1)
        return RawColumn(self.name, self.type, values, self.dtype)

    def _column(self, cells: list[Any]) -> RawColumn:
        if self.type in NUMBERS:
            values = np.array([np.nan if cell is None else float(cell) for cell in cells])
        else:
            values = np.empty(len(cells), object)
            values[:] = cells
        declared = self.categories if self.type == "category" else ()
        return RawColumn(self.name, self.type, values, self.dtype, declared, self.ordered)


def infer_column(column: RawColumn, kind: str | None = None) -> Column:
    """Infer the kind of a column, unless `kind` is passed.

    Raises:
        ValueError: If the values of the column do not match the kind, or if no kind can be inferred.
    """
    check_numbers(column)
    seen = column.values[~column.gaps]
    if not len(seen):
        raise ValueError(f"column {column.name!r} has only missing values; drop it")
    distinct = sorted(set(seen.tolist())) if column.type != "category" else []
    constant = "; constant" if len(set(seen.tolist())) == 1 else ""
    why = "as specified"
    if kind is None:
        kind, why = _pick(column, seen, distinct)
    base = (column.name, kind, column.type, column.dtype, why + constant)
    if kind in ("binary", "categorical"):
        categories = _categories(column, distinct, kind)
        return Column(*base, categories=categories, ordered=column.ordered)
    if column.type not in NUMBERS:
        raise ValueError(f"column {column.name!r} contains {column.type} and cannot be {kind}; use categorical")
    if kind == "count" and ((seen < 0).any() or (seen != np.round(seen)).any()):
        raise ValueError(f"column {column.name!r} cannot be a count; expected only non-negative integers")
    if kind == "count":
        return Column(*base)
    return Column(*base, shift=float(seen.mean()), scale=float(seen.std()) or 1.0)


def _pick(column: RawColumn, seen: Array, distinct: list[Any]) -> tuple[str, str]:
    if column.type == "bool":
        return "binary", "booleans"
    if column.type == "category":
        return ("binary", "two categories") if len(column.categories) <= 2 else ("categorical", "categories")
    if column.type == "text":
        return ("binary", "text with two values") if len(distinct) <= 2 else ("categorical", "text")
    if column.type == "float":
        return "real", "numbers with decimals"
    if len(distinct) == 2:
        return "binary", "integers with two values"
    is_small = distinct[0] >= 0 and distinct[-1] <= LARGEST_COUNT and len(distinct) > 1
    if is_small and seen.var() >= LEAST_DISPERSION * seen.mean():
        return "count", "small non-negative integers that vary like counts"
    return "real", "integers"


def _categories(column: RawColumn, distinct: list[Any], kind: str) -> tuple[Any, ...]:
    """Return the distinct values of a column in the order of their codes."""
    if column.type == "category":
        categories = column.categories
    elif column.type == "bool":
        categories = (False, True)
    else:
        categories = tuple(int(v) for v in distinct) if column.type == "int" else tuple(distinct)
    if kind == "binary" and len(categories) > 2:
        raise ValueError(f"column {column.name!r} has {len(categories)} distinct values and cannot be binary")
    if len(categories) > MOST_CATEGORIES:
        raise ValueError(
            f"column {column.name!r} has {len(categories)} categories, more than {MOST_CATEGORIES}; merge rare "
            "categories, or drop the column if it is an identifier"
        )
    if kind == "categorical" and len(categories) < 2:
        raise ValueError(f"column {column.name!r} is constant and cannot be categorical; do not set its kind")
    return categories
