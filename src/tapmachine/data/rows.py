"""Access to rows in memory, on disk or in sparse matrices, in evenly spaced samples or in parts."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.lazy_rows import LazyRows

Array = np.ndarray[Any, Any]
Rows = Tensor | LazyRows

SAMPLE_ROWS = 10_000  # sample size for data that are not in memory
VALUES_AT_A_TIME = 2**18  # number of values checked at a time, which limits the memory for masks and float64 copies


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


def from_array(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """Convert an array of real numbers to a tensor, which may share the memory of the array.

    Raises:
        ValueError: If the array does not contain real numbers of at most 64 bits.
    """
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
