"""Codec of a table: how rows of any form become states of the visible units, and how states become rows again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.columns import NUMBERS, RawColumn
from tapmachine.data.errors import DataError, SettingsError
from tapmachine.data.rows import LazyRows, Rows, by_rows, from_array, has_gaps, parts
from tapmachine.data.sources import INTENSITIES, DataSet, read
from tapmachine.data.text import COMPLETE_ROWS
from tapmachine.tables.frames import Frame, library_of, matrix_and_names
from tapmachine.tables.schema import Column, Schema

Array = np.ndarray[Any, Any]

SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # precisions scale with the square of values, and must fit into float32


@dataclass(frozen=True)
class Codec:
    """Conversion of rows of data to states of the visible units, and back.

    Rows are first encoded as numbers: columns of a table become standardized numbers, counts, 0 or 1, and one-hot
    categories; for plain arrays, the encoding is the identity. Missing values are NaN. Encoded rows then become tensors
    that the visible units accept. A codec is saved with its machine, so that other rows are converted in the same way.

    Attributes:
        names: Names of the columns; None for arrays.
        schema: Kinds of the columns of a table; None for arrays and files of numbers.
        library: Library of the DataFrame with the training data, "pandas" or "polars"; None for arrays and files.
        is_table: Whether columns are identified by their names and have kinds; False for rows of plain numbers.
        binarize: Threshold of binarization; None if values are not binarized.
        has_states: Whether the columns of a plain array are the numbers of categorical states.
        dtype: Data type of tensors of real numbers.
        unknown: Whether categories that the training data lack are treated as "missing", or are an "error".

    Example:
        >>> import pandas
        >>> from tapmachine.tables.codec import Codec
        >>> from tapmachine.tables.frames import Frame
        >>> frame = Frame.of(pandas.DataFrame({"mass": [1.5, 3.5], "kind": ["a", "b"]}))
        >>> codec = Codec.infer(frame)
        >>> codec.encode(frame)
        array([[-1.,  0.],
               [ 1.,  1.]])
        >>> codec.decode(codec.encode(frame), frame)
           mass kind
        0   1.5    a
        1   3.5    b
    """

    names: tuple[str, ...] | None = None
    schema: Schema | None = None
    library: str | None = None
    is_table: bool = False
    binarize: float | None = None
    has_states: bool = False
    dtype: str = "float32"
    unknown: str = "missing"

    @classmethod
    def infer(cls, X: Any, kinds: Mapping[str, str] | None = None, is_table: bool = True, **others: Any) -> "Codec":
        """Create the codec of training data.

        Args:
            X: Training data: a `Frame`, or anything else with rows of numbers.
            kinds: Mapping from column names to kinds (real, count, binary or categorical) that override the inferred
                kinds.
            is_table: Whether the columns of a DataFrame have kinds (default: True).
            others: Other attributes of the codec.
        """
        if not isinstance(X, Frame):
            if kinds is not None:
                raise ValueError("columns is set, but X has no column names; pass X as a DataFrame")
            _, names = matrix_and_names(X)
            return cls(None if names is None else tuple(names), **others)
        if kinds is not None and not is_table:
            raise ValueError("columns cannot be combined with visible, binarize or interval")
        schema = Schema.infer(X.columns, kinds) if is_table else None
        if schema is None or all((own.kind, own.type) == ("real", "float") for own in schema.columns):
            schema = Schema.of_numbers(X.columns)
        return cls(X.names, schema, X.library, is_table, **others)

    @property
    def is_coded(self) -> bool:
        """Whether columns are encoded, because some of them are not plain numbers."""
        return self.schema is not None and not self.schema.is_plain

    def with_schema(self, n_columns: int) -> "Codec":
        """Return a codec with a schema, in which columns of plain numbers are real and need no encoding."""
        if self.schema is not None:
            return self
        names = self.names or tuple(map(str, range(n_columns)))
        if len(names) != n_columns:
            raise ValueError(f"has {n_columns} columns; expected {len(names)}, as in the training data")
        return replace(
            self, schema=Schema.of_numbers([RawColumn(name, "float", np.empty(0), "float64") for name in names])
        )

    @property
    def frame(self) -> Frame | None:
        """Type of the DataFrame with the training data, without rows."""
        return None if self.library is None else Frame((), self.library)

    # ----- rows in

    def encode(
        self, X: Frame | Sequence[RawColumn], gaps: bool = True, optional: Sequence[str] = ()
    ) -> Array:  # (N, n_components)
        """Encode the columns of a table as numbers, with NaN for missing values.

        Args:
            X: DataFrame or columns with the names of the schema, in any order.
            gaps: Whether values may be missing (default: True).
            optional: Names of columns that may be absent, and whose values are ignored otherwise.

        Raises:
            ValueError: If the columns or their values do not match the schema.
        """
        assert self.schema is not None
        columns = [own for own in (X.columns if isinstance(X, Frame) else X) if own.name not in optional]
        rows = self.schema.encode(columns, optional, self.unknown if gaps else "error")
        for column in () if gaps else columns:
            if column.gaps.any():
                where = int(column.gaps.argmax())
                raise ValueError(f"column {column.name!r} is missing in row {where}; expected complete rows")
        return rows

    def given(self, values: Mapping[Any, Any], n_columns: int | None = None) -> Tensor:  # (n_components,)
        """Encode a row with known values in some columns and NaN in all others.

        Args:
            values: Known values by column name, or by column number for arrays. Numbers may be strings.
            n_columns: Number of columns, if the columns have no names.

        Raises:
            ValueError: If a column is unknown, or if a value does not match the kind of its column.
        """
        names: Sequence[Any] = range(n_columns or 0) if self.names is None else self.names
        for name in values:
            if name not in names:
                raise ValueError(f"given has column {name!r}; expected one of {', '.join(map(repr, names))}")
        if self.schema is None:
            row = [_number(name, values[name]) if name in values else np.nan for name in names]
            return torch.tensor(row, dtype=torch.float64)
        columns = []
        for column in self.schema.columns:
            value = values.get(column.name)
            if isinstance(value, str) and column.type in NUMBERS:
                is_truth = column.type == "bool" and value in ("True", "False")
                value = value == "True" if is_truth else _number(column.name, value)
            columns.append(RawColumn.of(column.name, [value], column.dtype))
        return torch.from_numpy(self.schema.encode(columns)[0])

    def rows(self, encoded: Array | LazyRows, dtype: torch.dtype | None = None) -> Rows:
        """Convert encoded rows to a tensor for the visible units, with NaN for missing values.

        Values are binarized, and states of categories become integers unless some of them are missing. Rows on disk
        stay on disk and are converted when they are read.
        """
        dtype = dtype or getattr(torch, self.dtype)
        x = encoded if isinstance(encoded, LazyRows) else from_array(encoded, "x")
        if isinstance(x, Tensor) and has_gaps(x):
            complete = self._complete_rows(x.nan_to_num(0.0), dtype)
            assert isinstance(complete, Tensor)
            return complete.to(dtype).masked_fill(x.isnan(), torch.nan)
        return self._complete_rows(x, dtype)

    def _complete_rows(self, x: Rows, dtype: torch.dtype) -> Rows:
        threshold = self.binarize
        if threshold is not None:
            return by_rows(lambda part: (_complete(part) > threshold).to(dtype), x)
        if self.has_states:
            if not all(bool(((part >= 0) & (part == part.round())).all()) for _, part in parts(x)):
                raise SettingsError("visible is 'categorical', but not all values are non-negative integers")
            return by_rows(lambda part: part.long(), x)
        return x.to(dtype) if isinstance(x, Tensor) else by_rows(lambda part: part.to(dtype), x)

    def training_rows(self, encoded: Array | LazyRows) -> Rows:
        """Convert encoded training rows as `rows` does.

        Raises:
            SettingsError: If real numbers are so large or small that the squares of parameters overflow.
        """
        if self.binarize is None and not self.has_states:
            x = encoded if isinstance(encoded, LazyRows) else from_array(encoded, "x")
            sizes = ((first, part.nan_to_num(0.0).abs().amax(1)) for first, part in parts(x))
            largest, row = max((float(size.max()), first + int(size.argmax())) for first, size in sizes)
            if largest and not SMALLEST_VALUE < largest < LARGEST_VALUE:
                raise SettingsError(
                    f"the largest value is {largest:g}, in row {row}; correct it, or scale all data to between "
                    f"{SMALLEST_VALUE:g} and {LARGEST_VALUE:g}"
                )
        return self.rows(encoded)

    # ----- rows out

    def decode(self, rows: Array, frame: Frame | None, keep: bool = False) -> Any:  # (N, n_components)
        """Decode encoded rows, or means of encoded rows.

        Args:
            rows: Encoded rows.
            frame: DataFrame whose library and index the result has; None for arrays, whose rows are not decoded.
            keep: Whether values that are known in `frame` are kept, for tables (default: False).
        """
        if frame is None or self.schema is None:
            return rows
        decoded = self.schema.decode(rows)
        if keep and self.is_table:
            known = {column.name: column for column in frame.columns}
            decoded = [known[own.name].filled_from(own) for own in decoded]
        return frame.table(decoded)

    def deviations(self, deviation: Array) -> Array:  # (N, n_components) -> (N, n_columns)
        """Return the standard deviation of each value in the units of the data, given those of its components."""
        return deviation if self.schema is None else self.schema.spread(deviation**2)

    def log_scale(self, encoded: Array) -> Array | float:  # (N, n_components) -> (N,)
        """Return the logarithm of the Jacobian of each row: ln P(data) = ln P(encoded) − log_scale."""
        return 0.0 if self.schema is None else self.schema.log_scale(encoded)

    def column(self, name: str) -> tuple[Column, slice]:
        """Return a column of the schema and its components in encoded rows.

        Raises:
            ValueError: If the table has no such column.
        """
        columns = () if self.schema is None else self.schema.columns
        for column in columns:
            if column.name == name:
                assert self.schema is not None
                return column, self.schema.components[name]
        raise ValueError(f"column is {name!r}; expected one of {', '.join(repr(own.name) for own in columns)}")


def _number(name: Any, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"given has the value {value!r} for column {name!r}; expected a number") from None


def _complete(part: Tensor) -> Tensor:
    if has_gaps(part):
        raise ValueError("values are missing (NaN); training with missing values requires a tensor in memory")
    return part


@dataclass(frozen=True)
class EncodedData(DataSet):
    """Data set whose tables are encoded as rows of numbers.

    Attributes:
        schema: Schema with which the rows of a table were encoded; None for other data.
        columns: Columns of the table before encoding.
    """

    schema: Schema | None = None
    columns: tuple[RawColumn, ...] = ()


def read_rows(
    source: str | Path,
    schema: Schema | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    gaps: bool = False,
    optional: Sequence[str] = (),
    scale_beyond: int | None = INTENSITIES,
) -> EncodedData:
    """Read rows from a named data set, a file or a directory of files, and encode tables.

    Args:
        source: Data source; see `tapmachine.data.sources.read`.
        schema: Schema that the table must have. By default, the schema of a .csv or .parquet file with columns other
            than numbers is inferred.
        kinds: Mapping from column names to kinds (real, count, binary or categorical) that override the inferred kinds.
        gaps: Whether missing values are allowed (default: False).
        optional: Columns of the schema that may be missing.
        scale_beyond: Threshold for scaling bytes (uint8).

    Returns:
        The rows, with the schema and the columns of a table.

    Raises:
        DataError: If the data cannot be read or do not match the schema.
    """
    texts = () if schema is None else schema.texts
    found = read(source, gaps, scale_beyond, schema is not None or bool(kinds), texts)
    if found.table is None:
        return EncodedData(**vars(found))
    try:
        columns = Frame.of(found.table).columns if library_of(found.table) else tuple(found.table)
        own = schema or Schema.infer(columns, kinds)
        rows = own.encode(columns, optional, "missing" if gaps else "error")
    except ValueError as error:
        raise DataError(f"{found.name}: {error}") from None
    for column in [] if gaps else columns:
        if column.gaps.any():
            row = int(column.gaps.argmax())
            raise DataError(f"{found.name}: row {row}, column {column.name!r} is empty; {COMPLETE_ROWS}")
    notes = tuple(f"{found.name}: {line}" for line in own.describe().splitlines()) if schema is None else ()
    return EncodedData(**(vars(found) | {"rows": rows, "notes": found.notes + notes}), schema=own, columns=columns)
