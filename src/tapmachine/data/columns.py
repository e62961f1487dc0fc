"""Raw columns of a DataFrame or text file, before encoding."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapmachine.data.errors import DataWarning, warn

Array = np.ndarray[Any, Any]

NUMBERS = ("bool", "int", "float")
EXACT = 2.0**53  # floating-point numbers below are exact if they are integers
LARGEST = 1e150
MIXED = "contains numbers and text; convert it to one type, for example by X[{0!r}] = X[{0!r}].astype(str)"


@dataclass(frozen=True)
class RawColumn:
    """Name, type and values of a column of a table.

    Attributes:
        name: Name of the column.
        type: Type of the values: bool, int, float, text or category.
        values: Values of shape (N,). Numbers and booleans are in float64, with NaN for missing values. Text and
            categories are in an array of objects, with None for missing values.
        dtype: Name of the dtype in pandas, polars or the file.
        categories: Possible values of a column of type category, in order.
        ordered: Whether the categories are ordered.
    """

    name: str
    type: str
    values: Array
    dtype: str = ""
    categories: tuple[Any, ...] = ()
    ordered: bool = False

    @classmethod
    def of(cls, name: str, values: Sequence[Any], dtype: str = "object") -> "RawColumn":
        """Create a column from Python objects and infer its type. None and NaN mark missing values.

        Raises:
            ValueError: If the values are not all numbers, all booleans or all text.
        """
        values = [None if _is_gap(value) else value for value in values]
        types = {_type_of(value) for value in values if value is not None}
        if types == {"int", "float"}:
            types = {"float"}
        if len(types) > 1:
            known = types <= {"text", *NUMBERS}
            what = MIXED.format(name) if known else f"contains {' and '.join(sorted(types))}; convert it to one type"
            raise ValueError(f"column {name!r} {what}")
        kind = types.pop() if types else "float"
        if kind in NUMBERS:
            return cls(name, kind, np.array([math.nan if v is None else float(v) for v in values]), dtype)
        if kind != "text":
            raise ValueError(f"column {name!r} contains {kind} values; convert it to numbers or text, or drop it")
        objects = np.empty(len(values), object)
        objects[:] = [None if value is None else str(value) for value in values]
        return cls(name, "text", objects, dtype)

    @property
    def gaps(self) -> Array:  # (N,), bool
        """Mask of the missing values."""
        if self.type in NUMBERS:
            return np.isnan(self.values)
        return np.array([value is None for value in self.values], bool)

    def filled_from(self, other: "RawColumn") -> "RawColumn":
        """Return a column whose missing values are filled from another column of the same kind.

        The column has the categories of the other column if its own lack one of the values.
        """
        gaps = self.gaps
        if gaps.all():  # the type of a column without values is unknown
            return other
        values = self.values.copy()
        values[gaps] = other.values[gaps]
        all_known = self.type != "category" or {*values[gaps].tolist()} <= {*self.categories}
        categories = self.categories if all_known else other.categories
        return RawColumn(self.name, self.type, values, self.dtype, categories, self.ordered)


def is_whole(values: Array) -> bool:
    """Return whether all values are integers, such as 181.0, or missing, and at least one is not."""
    seen = values[~np.isnan(values)]
    return bool(len(seen) and (abs(seen) < EXACT).all() and (seen == np.round(seen)).all())


def check_digits(name: str, values: Array) -> None:
    """Warn if integers are too large to be represented exactly."""
    if (abs(values) > EXACT).any():
        warn(
            f"column {name!r} contains integers above 2^53, whose last digits are lost; drop it if it is an identifier",
            DataWarning,
        )


def check_unique(names: Sequence[Any]) -> None:
    """Raise a ValueError if several columns have the same name."""
    counts = Counter(names)
    for name in names:
        if counts[name] > 1:
            raise ValueError(f"column {name!r} occurs twice; use unique column names")


def check_numbers(column: RawColumn) -> None:
    """Raise a ValueError if a column of numbers contains infinite values, or some whose squares are infinite."""
    if column.type not in NUMBERS:
        return
    bad = np.flatnonzero(abs(column.values) > LARGEST)
    if len(bad):
        raise ValueError(
            f"column {column.name!r} is {column.values[bad[0]]} in row {bad[0]}; expected finite numbers up to "
            f"{LARGEST:g}, or NaN for missing values"
        )


def _is_gap(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _type_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    return "text" if isinstance(value, str) else type(value).__name__
