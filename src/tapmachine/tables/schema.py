"""Schema of a table, which converts columns of several kinds to rows of numbers and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tapmachine.data.columns import RawColumn
from tapmachine.tables.kinds import KINDS, Column, infer_column

Array = np.ndarray[Any, Any]

ORDER = {kind: place for place, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Block:
    """Contiguous components of one kind, which belong to `n` units with `q` components each."""

    kind: str
    n: int
    q: int = 1


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
        >>> table = [RawColumn.of("mass", [1.0, 2.0, 3.0]), RawColumn.of("kind", ["a", "c", "b"])]
        >>> schema = Schema.infer(table)
        >>> print(schema.describe())
        mass: real, standardized: numbers with decimals
        kind: categorical, 3 categories (a, b, c): text
        >>> schema.encode(table).round(2)
        array([[-1.22,  1.  ,  0.  ,  0.  ],
               [ 0.  ,  0.  ,  0.  ,  1.  ],
               [ 1.22,  0.  ,  1.  ,  0.  ]])
        >>> [column.values.tolist() for column in schema.decode(schema.encode(table))]
        [[1.0, 2.0, 3.0], ['a', 'c', 'b']]
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
        _check_unique([column.name for column in table])
        if not table:
            raise ValueError("the table has no columns; expected at least one")
        kinds = dict(kinds or {})
        for name, kind in kinds.items():
            if name not in {column.name for column in table}:
                raise ValueError(f"columns contains {name!r}; the table has no column of this name")
            if kind not in KINDS:
                raise ValueError(f"columns[{name!r}] is {kind!r}; expected one of {', '.join(KINDS)}")
        return cls(tuple(infer_column(column, kinds.get(column.name)) for column in table))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

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
        return sorted(range(len(self.columns)), key=lambda i: (ORDER[self.columns[i].kind], self.columns[i].width))

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

    def blocks(self) -> list[Block]:
        """Return the blocks of components of the same kind, from left to right."""
        blocks: list[Block] = []
        for column in (self.columns[index] for index in self._encoded_order):
            last = blocks[-1] if blocks else None
            if last is not None and (last.kind, last.q) == (column.kind, column.width):
                blocks[-1] = replace(last, n=last.n + 1)
            else:
                blocks.append(Block(column.kind, 1, column.width))
        return blocks

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

    def check_names(self, names: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raise a ValueError if columns are missing, unknown, duplicated or in a different order."""
        _check_unique(names)
        for name in self.names:
            if name not in names and name not in optional:
                raise ValueError(f"column {name!r} of the training data is missing; add it")
        for name in names:
            if name not in self.names:
                raise ValueError(f"column {name!r} was not in the training data; drop it")
        expected = [name for name in self.names if name in names]
        for place, (name, there) in enumerate(zip(names, expected, strict=True)):
            if name != there:
                raise ValueError(
                    f"column {place} is {name!r}, but was {there!r} in training; "
                    "reorder the columns with X[model.feature_names_in_]"
                )

    def encode(self, table: Sequence[RawColumn], optional: Sequence[str] = ()) -> Array:  # (N, n_components), float64
        """Encode a table as rows of numbers, with NaN for missing values and missing optional columns.

        Raises:
            ValueError: If a column is missing or unknown, or if a value does not match the kind of its column.
        """
        self.check_names([column.name for column in table], optional)
        by_name = {column.name: column for column in table}
        rows = np.full((len(table[0].values), self.n_components), np.nan)
        for column in self.columns:
            if column.name in by_name:
                rows[:, self.components[column.name]] = column.encode(by_name[column.name])
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
        made = []
        for values in description["columns"]:
            own = dict(values)
            own["categories"] = tuple(own["categories"])
            made.append(Column(**own))
        return cls(tuple(made))


def _check_unique(names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"column {name!r} occurs twice; use unique column names")
