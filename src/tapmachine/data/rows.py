"""Rows in memory, on disk or in sparse matrices: evenly spaced rows, or all rows in parts."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.lazy_rows import LazyRows

Array = np.ndarray[Any, Any]
Rows = Tensor | LazyRows

SAMPLE_ROWS = 10_000  # sample size for data that are not in memory
VALUES_AT_A_TIME = 2**18  # values checked at a time: masks and float64 copies of all would take as much memory again


def spaced(x: Rows | Array, most: int) -> Tensor:
    """Select at most `count` evenly spaced rows; fewer from sparse matrices whose dense rows are large."""
    most = min(most, x.most_sampled) if isinstance(x, LazyRows) else most
    return every(x, most)


def every(x: Rows | Array, most: int) -> Tensor:
    """Select at most `count` evenly spaced rows, regardless of memory."""
    return as_tensor(x[:: -(-len(x) // most)])


def held_in_memory(x: Rows) -> Tensor:
    """All rows if they are in memory; otherwise as many evenly spaced rows as fit into memory."""
    return x if isinstance(x, Tensor) else every(x, x.most_in_memory)


def parts(x: Rows | Array) -> Iterator[tuple[int, Tensor]]:
    """Iterate over all rows in parts, with the index of the first row of each."""
    step = rows_at_a_time(math.prod(x.shape[1:]))
    for first in range(0, len(x), step):
        yield first, as_tensor(x[first : first + step])


def as_tensor(rows: Tensor | Array) -> Tensor:
    """Rows as a tensor; arrays are copied."""
    return rows if isinstance(rows, Tensor) else from_array(np.array(rows), "x")  # a copy, as the array may change


def place_of(row: int, x: Rows) -> str:
    """The file and row number of a row of data."""
    return "row {1} of {0}".format(*x.place(row)) if isinstance(x, LazyRows) else f"row {row}"


def in_parts(x: Tensor) -> tuple[Tensor, ...]:  # (N, ...) -> (M, ...), …
    """Split the rows into parts of bounded size."""
    parts: tuple[Tensor, ...] = x.split(rows_at_a_time(x[:1].numel()))
    return parts


def rows_at_a_time(width: int) -> int:
    """Number of rows of this width in a part."""
    return max(1, VALUES_AT_A_TIME // max(1, width))


def from_array(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """Convert an array of real numbers to a tensor, which may share its memory. Raises ValueError for other types."""
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ValueError(f"{name} holds {values.dtype.name}; expected real numbers of at most 64 bits")
    # torch requires writable memory and native byte order.
    return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ("C", "W")))
