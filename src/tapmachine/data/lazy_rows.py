"""Rows that are read on demand, from arrays larger than memory and from sparse matrices."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LARGE_BYTES = 2**30  # arrays with more bytes stay on disk
SPARSE_SHARE = 8  # sparse matrices stay sparse above this fraction (1/8) of LARGE_BYTES
VALUES_AT_A_TIME = 2**20  # number of values read at a time
SPARSE_VALUES = 2**21  # number of values of a sparse matrix converted to dense rows at a time (at least one row)


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
        >>> from tapmachine.data.lazy_rows import LazyRows
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
        step = max(1, VALUES_AT_A_TIME // self.shape[1])
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
