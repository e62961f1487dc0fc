"""Rows that are read when they are needed: of arrays that are too large for memory, and of sparse matrices."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LARGE_BYTES = 2**30  # of rows, beyond which they are not read into memory
SPARSE_SHARE = 8  # of that: rows of sparse matrices that are made dense at once
VALUES_AT_A_TIME = 2**20  # that are looked at
SPARSE_VALUES = 2**21  # of rows of a sparse matrix that are dense at a time, unless a single row has more


class LazyRows:
    """Rows of arrays that stay where they are, as memory maps do; the next array continues where the last one ends.

    `rows[10:20]` and `rows[indices]` read some of them, and `numpy.asarray(rows)` reads all. Rows of sparse matrices
    are dense when they are read.

    Args:
        arrays: by their names; of one dtype, and of one shape but for the number of rows. Sparse matrices are in
            SciPy's CSR format.
        convert: what is done to rows when they are read, flat; it does the same to each, whichever come with it.
        numbers: indices of the rows to use (default: all).

    Attributes:
        shape: (N, n).
        dtype: of what is read.
        is_sparse: whether the rows are those of sparse matrices.

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
                raise IndexError(f"rows are chosen by their numbers, from 0 to {len(self) - 1}")
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
        """All rows, some at a time, with the index of the first."""
        step = max(1, VALUES_AT_A_TIME // self.shape[1])
        for first in range(0, len(self), step):
            yield first, self[first : first + step]

    @property
    def most_sampled(self) -> int:
        """Number of rows that may stand for all: of a sparse matrix, those that take little memory as dense ones."""
        return max(1, SPARSE_VALUES // self.shape[1]) if self.is_sparse else len(self)

    @property
    def most_in_memory(self) -> int:
        """Number of rows that fit into memory."""
        row_bytes: int = self.shape[1] * self.dtype.itemsize
        return max(1, LARGE_BYTES // row_bytes // (SPARSE_SHARE if self.is_sparse else 1))

    def mapped(self, function: Callable[[Array], Array]) -> "LazyRows":
        """The rows with a function applied when they are read."""
        return LazyRows(self._arrays, lambda rows: function(self._convert(rows)), self._numbers)

    def between(self, first: int, last: int) -> "LazyRows":
        """The rows from `first` to before `last`; nothing is read."""
        return LazyRows(self._arrays, self._convert, self._numbers[first:last])

    def place(self, row: int) -> tuple[str, int]:
        """The name of the array that holds a row, and the row's index there."""
        array_index = int(np.searchsorted(self._ends, self._numbers[row], side="right"))
        return list(self._arrays)[array_index], self._numbers[row] - self._begin(array_index)

    def _begin(self, array_index: int) -> int:
        """The index of an array's first row."""
        return int(self._ends[array_index - 1]) if array_index else 0
