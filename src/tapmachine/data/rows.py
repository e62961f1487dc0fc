"""Rows in memory, on disk or in sparse matrices: rows read on demand, evenly spaced samples, and parts."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

LARGE_BYTES = 2**30  # arrays with more bytes stay on disk
SPARSE_SHARE = 8  # sparse matrices stay sparse above this fraction (1/8) of LARGE_BYTES
VALUES_READ = 2**20  # number of values read at a time
SPARSE_VALUES = 2**21  # number of values of a sparse matrix converted to dense rows at a time (at least one row)
SAMPLE_ROWS = 10_000  # sample size for data that are not in memory
VALUES_AT_A_TIME = 2**18  # number of values checked at a time, which limits the memory for masks and float64 copies


class LazyRows:
    """Concatenated rows of several arrays, such as memory maps, that are read on demand.

    `rows[10:20]` and `rows[indices]` read some rows, and `numpy.asarray(rows)` reads all rows. Rows of sparse matrices
    are converted to dense rows.

    Args:
        arrays: Arrays by name, with the same dtype and the same number of columns. Sparse matrices must be in SciPy's
            CSR format.
        convert: Function applied to flattened rows when they are read, which must act on each row independently.
        numbers: Indices of the rows to use (default: all rows).

    Attributes:
        shape: Shape (N, n) of all rows.
        dtype: Data type of the rows.
        is_sparse: Whether the arrays are sparse matrices.

    Example:
        >>> import numpy as np
        >>> from tapmachine.data.rows import LazyRows
        >>> rows = LazyRows({"a.npy": np.eye(3), "b.npy": np.ones((2, 3))})
        >>> rows[2:4]
        array([[0., 0., 1.],
               [1., 1., 1.]])
        >>> rows.place(4)
        ('b.npy', 1)
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        convert: Callable[[Array], Array] = lambda rows: rows,
        numbers: range | None = None,
    ) -> None:
        self._arrays, self._convert = arrays, convert
        self._ends = np.cumsum([array.shape[0] for array in arrays.values()])
        self.is_sparse = any(hasattr(array, "toarray") for array in arrays.values())
        self._numbers = range(int(self._ends[-1])) if numbers is None else numbers
        first = self[:1]
        self.shape, self.dtype = (len(self), *first.shape[1:]), first.dtype

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: slice | Array) -> Array:
        if isinstance(index, slice):
            selected = self._numbers[index]
            numbers = np.arange(selected.start, selected.stop, selected.step)
        else:
            if index.dtype == bool or not ((index >= 0) & (index < len(self))).all():
                raise IndexError(f"invalid row index; expected integers from 0 to {len(self) - 1}")
            numbers = self._numbers.start + index
        arrays = list(self._arrays.values())
        rows = np.empty((len(numbers), *arrays[0].shape[1:]), arrays[0].dtype)
        which = np.searchsorted(self._ends, numbers, side="right")
        for array_index in np.unique(which):
            here = which == array_index
            chosen = arrays[array_index][numbers[here] - self._begin(array_index)]
            rows[here] = chosen.toarray() if self.is_sparse else chosen
        return self._convert(rows.reshape(len(rows), math.prod(rows.shape[1:])))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, dtype or self.dtype)
        for first, part in self.parts():
            whole[first : first + len(part)] = part
        return whole

    def parts(self) -> Iterator[tuple[int, Array]]:
        """Iterate over all rows in parts. Yields the index of the first row of each part, and the part."""
        step = max(1, VALUES_READ // self.shape[1])
        for first in range(0, len(self), step):
            yield first, self[first : first + step]

    @property
    def most_sampled(self) -> int:
        """Maximum number of rows in a sample, which is limited for sparse matrices."""
        return max(1, SPARSE_VALUES // self.shape[1]) if self.is_sparse else len(self)

    @property
    def most_in_memory(self) -> int:
        """Number of rows that fit into memory."""
        row_bytes: int = self.shape[1] * self.dtype.itemsize
        return max(1, LARGE_BYTES // row_bytes // (SPARSE_SHARE if self.is_sparse else 1))

    def mapped(self, function: Callable[[Array], Array]) -> "LazyRows":
        """Return rows to which a function is applied when they are read."""
        return LazyRows(self._arrays, lambda rows: function(self._convert(rows)), self._numbers)

    def between(self, first: int, last: int) -> "LazyRows":
        """Return the rows from `first` up to, but not including, `last`, without reading them."""
        return LazyRows(self._arrays, self._convert, self._numbers[first:last])

    def place(self, row: int) -> tuple[str, int]:
        """Return the name of the array that contains a row, and the index of the row in this array."""
        array_index = int(np.searchsorted(self._ends, self._numbers[row], side="right"))
        return list(self._arrays)[array_index], self._numbers[row] - self._begin(array_index)

    def _begin(self, array_index: int) -> int:
        """Return the index of an array's first row among all rows."""
        return int(self._ends[array_index - 1]) if array_index else 0


Rows = Tensor | LazyRows


def spaced(x: Rows | Array, most: int) -> Tensor:
    """Select at most `most` evenly spaced rows, or fewer from sparse matrices with many columns."""
    most = min(most, x.most_sampled) if isinstance(x, LazyRows) else most
    return every(x, most)


def every(x: Rows | Array, most: int) -> Tensor:
    """Select at most `most` evenly spaced rows, regardless of their size in memory."""
    return as_tensor(x[:: -(-len(x) // most)])


def held_in_memory(x: Rows) -> Tensor:
    """Return all rows of a tensor, or as many evenly spaced rows of other data as fit into memory."""
    return every(x, x.most_in_memory) if isinstance(x, LazyRows) else x


def parts(x: Rows | Array) -> Iterator[tuple[int, Tensor]]:
    """Iterate over all rows in parts. Yields the index of the first row of each part, and the part."""
    step = rows_at_a_time(math.prod(x.shape[1:]))
    for first in range(0, len(x), step):
        yield first, as_tensor(x[first : first + step])


def as_tensor(rows: Tensor | Array) -> Tensor:
    """Convert rows to a tensor, copying arrays."""
    return rows if isinstance(rows, Tensor) else from_array(np.array(rows), "x")  # a copy, as the array may change


def place_of(row: int, x: Rows) -> str:
    """Describe the location of a row by its index and, for data on disk, its file."""
    return "row {1} of {0}".format(*x.place(row)) if isinstance(x, LazyRows) else f"row {row}"


def in_parts(x: Tensor) -> tuple[Tensor, ...]:  # (N, ...) -> (M, ...), …
    """Split the rows into parts of bounded size."""
    parts: tuple[Tensor, ...] = x.split(rows_at_a_time(x[:1].numel()))
    return parts


def has_gaps(x: object) -> bool:
    """Return whether a tensor contains NaN."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout != torch.strided or x.is_meta:
        return False
    return x.dim() > 0 and any(bool(part.isnan().any()) for part in in_parts(x))


def rows_at_a_time(width: int) -> int:
    """Return the number of rows with `width` values each that are processed at a time."""
    return max(1, VALUES_AT_A_TIME // max(1, width))


def unmasked(values: Any) -> Any:
    """Return a masked array as floats with NaN for masked values, and other values as they are."""
    return np.ma.filled(values.astype(np.float64), np.nan) if isinstance(values, np.ma.MaskedArray) else values


def from_array(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """Convert an array of real numbers to a tensor, which may share the memory of the array.

    Raises:
        ValueError: If the array does not contain real numbers of at most 64 bits.
    """
    values = unmasked(values)
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ValueError(f"{name} contains {values.dtype.name}; expected real numbers of at most 64 bits")
    # torch requires writable memory and native byte order.
    return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ("C", "W")))


def by_rows(function: Callable[[Tensor], Tensor], x: Rows) -> Rows:
    """Apply a function to rows: in parts if the rows are in memory, or on reading if the rows are on disk."""
    if isinstance(x, LazyRows):
        return x.mapped(lambda part: function(torch.from_numpy(part)).numpy())
    results: Tensor | None = None
    for first, part in parts(x):
        result = function(part)
        results = result.new_empty((len(x), *result.shape[1:])) if results is None else results
        results[first : first + len(result)] = result
    assert results is not None
    return results
