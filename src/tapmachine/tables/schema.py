"""Schema of a table: the kinds of its columns, their encoding as states of the visible units, and decoding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from tapmachine.data.columns import NUMBERS, RawColumn, check_numbers, check_unique
from tapmachine.data.declarations import KINDS_OF_COLUMNS as KINDS
from tapmachine.data.errors import DataWarning, warn
from tapmachine.units import Binary, Categorical, Gaussian, Mixed, Poisson, Units

Array = np.ndarray[Any, Any]


MOST_CATEGORIES = 256  # a column with more distinct values is probably an identifier
LARGEST_COUNT = 100  # columns with larger integers are real
# Minimum variance-to-mean ratio of counts; the ratio is 1 for a Poisson distribution and larger for mixtures.
LEAST_DISPERSION = 0.8
FARTHEST = 1e100  # largest standardized value; its square is part of a log-density
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

    @property
    def is_category(self) -> bool:
        """Whether the values of the column have probabilities, unlike real numbers and counts."""
        return self.kind in ("binary", "categorical")

    @property
    def is_plain(self) -> bool:
        """Whether the values of the column need no encoding."""
        return self.kind == "real" and (self.shift, self.scale) == (0, 1)

    def describe(self) -> str:
        """Describe the kind of the column and the reason for it in one line."""
        named = _listed([str(value) for value in self.categories])
        if len(self.categories) == 1:
            return f"{self.name}: constant ({named})"
        order = "ordered " if self.ordered else ""
        what = {
            "real": "real" if self.is_plain else "real, standardized",
            "count": "count",
            "binary": f"binary ({named})",
            "categorical": f"categorical, {len(self.categories)} {order}categories ({named})",
        }[self.kind]
        return f"{self.name}: {what}: {self.why}"

    def encode(self, column: RawColumn, unknown: str = "error") -> Array:  # (N,) -> (N, width)
        """Encode cells as numbers, with NaN for missing values.

        Args:
            column: Cells to encode.
            unknown: Whether categories without a code are an "error" (default), or treated as "missing" with a warning.

        Raises:
            ValueError: If a cell does not match the kind of the column.
        """
        check_numbers(column)
        if self.is_category:
            return self._encode_categories(column, unknown)
        if column.type not in NUMBERS and column.gaps.all():
            return np.full((len(column.values), 1), np.nan)
        if column.type not in NUMBERS:
            raise ValueError(f"column {self.name!r} contains {column.type}; expected numbers, as in training")
        if self.kind == "count":
            self._reject(column, (column.values < 0) | (column.values != np.round(column.values)), "expected a count")
        rows = ((column.values - self.shift) / self.scale)[:, None]
        if self.kind == "real":
            far = abs(rows[:, 0]) > FARTHEST
            self._reject(column, far, f"more than {FARTHEST:g} standard deviations from the training data")
        return rows

    def _encode_categories(self, column: RawColumn, unknown: str) -> Array:
        codes = {value: code for code, value in enumerate(self.categories)}
        code = np.array([codes.get(cell, -1) for cell in column.values.tolist()], np.int64)
        is_new = (code < 0) & ~column.gaps
        rule = f"which is not a category of the training data; expected {_listed(list(map(repr, self.categories)))}"
        if unknown == "error":
            self._reject(column, is_new, rule)
        elif is_new.any():
            first = int(is_new.argmax())
            warn(
                f"column {self.name!r}: {is_new.sum()} value{'s' if is_new.sum() > 1 else ''} that the training data "
                f"lack, treated as missing; the first is {column.values.tolist()[first]!r} in row {first}",
                DataWarning,
            )
        rows = code[:, None].astype(float) if self.kind == "binary" else np.eye(self.width)[code]
        rows[code < 0] = np.nan
        return rows

    def _reject(self, column: RawColumn, is_bad: Array, rule: str) -> None:
        bad = np.flatnonzero(is_bad & ~column.gaps)
        if len(bad):
            value = column.values.tolist()[bad[0]]
            raise ValueError(f"column {self.name!r} is {value!r} in row {bad[0]}, {rule}")

    def decode(self, rows: Array) -> RawColumn:  # (N, width) -> (N,)
        """Decode encoded values, or means of encoded values, to cells."""
        gaps = np.asarray(np.isnan(rows).any(axis=1))
        if self.is_category:
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
    if not len(column.values):
        raise ValueError("the table has no rows; expected at least one")
    seen = column.values[~column.gaps]
    if not len(seen):
        raise ValueError(f"column {column.name!r} has only missing values; drop it")
    if column.type == "float" and kind != "real" and (seen == np.round(seen)).all():
        column = replace(column, type="int")  # pandas stores integers with gaps as floats
    distinct = sorted(set(seen.tolist())) if column.type != "category" else []
    why = "as specified"
    if kind is None:
        kind, why = _pick(column, seen, distinct)
    base = (column.name, kind, column.type, column.dtype, why)
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
    if len(distinct) == 1:
        return "binary", "constant"
    if column.type == "text":
        return ("binary", "text with two values") if len(distinct) == 2 else ("categorical", "text")
    if column.type == "float":
        return "real", "numbers with decimals"
    if len(distinct) == 2:
        return "binary", "integers with two values"
    is_small = distinct[0] >= 0 and distinct[-1] <= LARGEST_COUNT
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


@dataclass(frozen=True)
class Schema:
    """Kinds of the columns of a table, and how cells are encoded as numbers.

    Encoded rows contain the standardized real columns first, followed by counts and binary columns (0 or 1).
    Categorical columns follow as one-hot vectors, grouped by their number of categories. Missing values are NaN. A
    missing category is NaN in all of its components. Encoded rows are states of the visible units that `tapmachine.RBM`
    creates for a table.

    Attributes:
        columns: The columns in the order of the table.

    Example:
        >>> from tapmachine.tables.schema import Schema
        >>> from tapmachine.data.columns import RawColumn
        >>> table = [RawColumn.of("mass", [1.5, 2.5, 3.5]), RawColumn.of("kind", ["a", "c", "b"])]
        >>> schema = Schema.infer(table)
        >>> print(schema.describe())
        mass: real, standardized: numbers with decimals
        kind: categorical, 3 categories (a, b, c): text
        >>> schema.encode(table).round(2)
        array([[-1.22,  1.  ,  0.  ,  0.  ],
               [ 0.  ,  0.  ,  0.  ,  1.  ],
               [ 1.22,  0.  ,  1.  ,  0.  ]])
        >>> [column.values.tolist() for column in schema.decode(schema.encode(table))]
        [[1.5, 2.5, 3.5], ['a', 'c', 'b']]
    """

    columns: tuple[Column, ...]

    @classmethod
    def infer(cls, table: Sequence[RawColumn], kinds: Mapping[str, str] | None = None) -> "Schema":
        """Infer the schema of a table.

        Columns of booleans are binary, and so are columns of text or integers with two values. Other columns of text or
        categories are categorical. Small non-negative integers whose variance is compatible with counts are counts. All
        other numbers are real.

        Args:
            table: Columns of the table.
            kinds: Mapping from column names to kinds (real, count, binary or categorical) that override the inferred
                kinds.

        Raises:
            ValueError: If a column has no valid kind, or if `kinds` contains an unknown column or kind.
        """
        check_unique([column.name for column in table])
        if not table:
            raise ValueError("the table has no columns; expected at least one")
        kinds = dict(kinds or {})
        for name, kind in kinds.items():
            if name not in {column.name for column in table}:
                raise ValueError(f"columns contains {name!r}; the table has no column of this name")
            if kind not in KINDS:
                raise ValueError(f"columns[{name!r}] is {kind!r}; expected one of {', '.join(KINDS)}")
        return cls(tuple(infer_column(column, kinds.get(column.name)) for column in table))

    @classmethod
    def of_numbers(cls, table: Sequence[RawColumn]) -> "Schema":
        """Return the schema of a table whose columns are real and need no encoding."""
        check_unique([column.name for column in table])
        return cls(tuple(Column(own.name, "real", own.type, own.dtype, "numbers with decimals") for own in table))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers that need no encoding."""
        return all(column.is_plain for column in self.columns)

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns whose values are text."""
        return tuple(c.name for c in self.columns if c.categories and all(isinstance(v, str) for v in c.categories))

    def describe(self) -> str:
        """Describe the kind of each column and the reason for it, one line per column."""
        return "\n".join(column.describe() for column in self.columns)

    # ----- components

    @cached_property
    def _encoded_order(self) -> list[int]:
        """Indices of the columns in the order of encoded rows."""
        return sorted(
            range(len(self.columns)), key=lambda i: (KINDS.index(self.columns[i].kind), self.columns[i].width)
        )

    @cached_property
    def components(self) -> dict[str, slice]:
        """Slice of encoded rows that belongs to each column, by column name."""
        slices, first = {}, 0
        for index in self._encoded_order:
            column = self.columns[index]
            slices[column.name] = slice(first, first + column.width)
            first += column.width
        return {name: slices[name] for name in self.names}

    @property
    def n_components(self) -> int:
        """Number of components of an encoded row."""
        return sum(column.width for column in self.columns)

    def blocks(self) -> list[tuple[str, int, int]]:
        """Return the kind, the components per unit and the number of units of each block of encoded rows."""
        encoded = (self.columns[index] for index in self._encoded_order)
        return [(*key, len(list(own))) for key, own in groupby(encoded, lambda column: (column.kind, column.width))]

    def units(self) -> Units:
        """Create visible units for encoded rows, with one block per kind of column.

        Real columns become `Gaussian` units, counts become `Poisson` units, binary columns become `Binary` units, and
        categorical columns become `Categorical` units. Columns of several kinds are combined in a `Mixed` layer.
        Categorical units are always in a `Mixed` layer, whose states have one fewer dimension.
        """
        makers: dict[str, Callable[[int], Units]] = {"real": Gaussian, "count": Poisson, "binary": Binary}
        blocks: list[Units] = [
            Categorical(n, q) if kind == "categorical" else makers[kind](n) for kind, q, n in self.blocks()
        ]
        return blocks[0] if len(blocks) == 1 and len(blocks[0].state_shape) == 1 else Mixed(blocks)

    @property
    def log_scales(self) -> Array:  # (n_columns,)
        """Return ln s for each real column with scale s, and 0 for other columns.

        The log-density of encoded cells minus ln s is the log-density in the units of the data.
        """
        return np.array([np.log(column.scale) if column.kind == "real" else 0.0 for column in self.columns])

    def log_scale(self, rows: Array) -> Array:  # (N, n_components) -> (N,)
        """Return, for each encoded row, the sum of ln s over the observed cells in real columns."""
        total: Array = np.where(np.isnan(self.by_column(rows)), 0.0, self.log_scales).sum(1)
        return total

    # ----- rows

    def encode(
        self, table: Sequence[RawColumn], optional: Sequence[str] = (), unknown: str = "error"
    ) -> Array:  # (N, n_components), float64
        """Encode a table as rows of numbers, with NaN for missing values and missing optional columns.

        Columns are identified by their names, so their order does not matter. `unknown` is that of `Column.encode`.

        Raises:
            ValueError: If a column is missing or unknown, or if a value does not match the kind of its column.
        """
        by_name = {column.name: column for column in table}
        check_unique([column.name for column in table])
        missing = [name for name in self.names if name not in by_name and name not in optional]
        new = [name for name in by_name if name not in self.components]
        if missing:
            is_or_are, it = ("is", "it") if len(missing) == 1 else ("are", "them")
            raise ValueError(f"{_columns(missing)} of the training data {is_or_are} missing; add {it}")
        if new:
            was_or_were, it = ("was", "it") if len(new) == 1 else ("were", "them")
            raise ValueError(f"{_columns(new)} {was_or_were} not in the training data; drop {it}")
        if not table or not len(table[0].values):
            raise ValueError("X has no rows (n_samples=0)")
        rows = np.full((len(table[0].values), self.n_components), np.nan)
        for column in self.columns:
            if column.name in by_name:
                rows[:, self.components[column.name]] = column.encode(by_name[column.name], unknown)
        return rows

    def decode(self, rows: Array) -> list[RawColumn]:  # (N, n_components)
        """Decode encoded rows, or means of encoded rows, to a table.

        Means of categories are decoded to the most probable category, and means of integers are rounded.
        """
        rows = np.asarray(rows, np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_components:
            raise ValueError(f"rows have shape {rows.shape}; expected (n_rows, {self.n_components})")
        return [column.decode(rows[:, self.components[column.name]]) for column in self.columns]

    def n_gaps(self, rows: Array) -> int:  # (N, n_components)
        """Return the number of missing cells in encoded rows."""
        return int(sum(np.isnan(rows[:, where]).any(1).sum() for where in self.components.values()))

    def spread(self, variance: Array) -> Array:  # (N, n_components) -> (N, n_columns)
        """Return the standard deviation of each cell in the units of the data, given the component variances."""
        parts = [column.scale**2 * variance[:, self.components[column.name]].sum(1) for column in self.columns]
        deviations: Array = np.sqrt(np.maximum(np.stack(parts, 1), 0))
        return deviations

    def by_column(self, values: Array) -> Array:  # (N, n_components) -> (N, n_columns)
        """Sum values over the components of each column."""
        return np.stack([values[:, self.components[name]].sum(1) for name in self.names], 1)

    # ----- files

    def to_dict(self) -> dict[str, Any]:
        """Convert the schema to a dictionary of JSON values."""
        return {"columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> "Schema":
        """Create a schema from the output of `to_dict`."""
        columns = description["columns"]
        return cls(tuple(Column(**values | {"categories": tuple(values["categories"])}) for values in columns))


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {_listed(list(map(repr, names)))}"
