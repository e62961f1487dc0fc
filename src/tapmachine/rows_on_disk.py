"""Rows of arrays that are too large for memory, read when they are needed."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LARGE_BYTES = 2**30  # of rows, beyond which they are not read into memory
VALUES_AT_A_TIME = 2**20  # that are looked at


class RowsOnDisk:
    """Rows of arrays that stay where they are, as memory maps do; the next array goes on where the last one ends.

    `rows[10:20]` and `rows[indices]` read some of them, and `numpy.asarray(rows)` reads all.

    Args:
        arrays: by their names; of one dtype, and of one shape but for the number of rows.
        convert: what is done to rows when they are read, flat; it does the same to each, whichever come with it.
        numbers: of the rows that are meant; all, unless given.

    Attributes:
        shape: (N, n).
        dtype: of what is read.

    Example:
        >>> import numpy as np
        >>> from tapmachine.rows_on_disk import RowsOnDisk
        >>> rows = RowsOnDisk({"a.npy": np.eye(3), "b.npy": np.ones((2, 3))})
        >>> rows[2:4]
        array([[0., 0., 1.],
               [1., 1., 1.]])
        >>> rows.place(4)
        ('b.npy', 1)
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        convert: Callable[[Array], Array] = lambda rows: rows,
        numbers: range | None = None,
    ) -> None:
        self._arrays, self._convert = arrays, convert
        self._ends = np.cumsum([len(array) for array in arrays.values()])
        self._numbers = range(int(self._ends[-1])) if numbers is None else numbers
        first = self[:1]
        self.shape, self.dtype = (len(self), *first.shape[1:]), first.dtype

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: slice | Array) -> Array:
        if isinstance(index, slice):
            chosen = self._numbers[index]
            numbers = np.arange(chosen.start, chosen.stop, chosen.step)
        else:
            if index.dtype == bool or not ((index >= 0) & (index < len(self))).all():
                raise IndexError(f"rows are chosen by their numbers, from 0 to {len(self) - 1}")
            numbers = self._numbers.start + index
        arrays = list(self._arrays.values())
        found = np.empty((len(numbers), *arrays[0].shape[1:]), arrays[0].dtype)
        which = np.searchsorted(self._ends, numbers, side="right")
        for number in np.unique(which):
            here = which == number
            found[here] = arrays[number][numbers[here] - self._begin(number)]
        return self._convert(found.reshape(len(found), math.prod(found.shape[1:])))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, dtype or self.dtype)
        for first, part in self.parts():
            whole[first : first + len(part)] = part
        return whole

    def parts(self) -> Iterator[tuple[int, Array]]:
        """All rows, some at a time, with the number of the first."""
        step = max(1, VALUES_AT_A_TIME // self.shape[1])
        for first in range(0, len(self), step):
            yield first, self[first : first + step]

    @property
    def most_in_memory(self) -> int:
        """How many rows may be read together and not be large."""
        row_bytes: int = self.shape[1] * self.dtype.itemsize
        return max(1, LARGE_BYTES // row_bytes)

    def mapped(self, function: Callable[[Array], Array]) -> "RowsOnDisk":
        """Rows to which more is done when they are read."""
        return RowsOnDisk(self._arrays, lambda rows: function(self._convert(rows)), self._numbers)

    def between(self, first: int, last: int) -> "RowsOnDisk":
        """Those from the first to before the last one; nothing is read."""
        return RowsOnDisk(self._arrays, self._convert, self._numbers[first:last])

    def place(self, row: int) -> tuple[str, int]:
        """The name of the array that a row is in, and its number there."""
        number = int(np.searchsorted(self._ends, self._numbers[row], side="right"))
        return list(self._arrays)[number], self._numbers[row] - self._begin(number)

    def _begin(self, number: int) -> int:
        """The number of an array's first row."""
        return int(self._ends[number - 1]) if number else 0
