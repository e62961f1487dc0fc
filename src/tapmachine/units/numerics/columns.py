"""Weighted sums and moments over the rows of data, used by `fit_to`."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.data.rows import Rows, parts
from tapmachine.units.numerics.intervals import wide

SMALLEST_SPREAD = 0.01  # smallest standard deviation assigned to a constant column, relative to a typical column


def sum_over_rows(term: Callable[[Tensor, Tensor], Tensor], x: Rows, weights: Tensor) -> Tensor:
    """Compute Σ term(x, w) over all rows in float64, in chunks of rows to limit memory usage.

    Args:
        term: Function that maps a chunk of rows, of shape (M, *state_shape), and their weights to the terms of the sum.
            The weights have the same number of dimensions as the rows.
        x: States, of shape (rows, *state_shape), not necessarily in memory.
        weights: Weights of the rows, of shape (rows,).
    """
    weights = weights.view(-1, *[1] * (len(x.shape) - 1))
    total = torch.zeros((), dtype=torch.float64, device=weights.device)
    for first, z in parts(x):
        total = total + term(wide(z.to(weights.device)), wide(weights[first : first + len(z)])).sum(0)
    return total


def column_moments(x: Rows, weights: Tensor, of_nonzero: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the total weight, mean and variance of every column in float64.

    The variance of a constant column is exactly 0.

    Args:
        x: Data, of shape (rows, n).
        weights: Weights of the rows, of shape (rows,).
        of_nonzero: Whether to ignore values that are exactly 0 (default: False).
    """

    def counts(z: Tensor, w: Tensor) -> Tensor:
        return w * (z != 0) if of_nonzero else w

    count = sum_over_rows(counts, x, weights).expand(x.shape[1])
    seen = torch.where(count > 0, count, 1.0)
    mean = sum_over_rows(lambda z, w: counts(z, w) * z, x, weights) / seen
    variance = sum_over_rows(lambda z, w: counts(z, w) * (z - mean) ** 2, x, weights) / seen
    return count, mean, torch.where(variance > (1e-12 * mean) ** 2, variance, 0.0)
