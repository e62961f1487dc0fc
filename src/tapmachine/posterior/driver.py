"""What denoising and recovery have in common: options, initial states, and posteriors of all rows in chunks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.baselines import nearest_neighbors
from tapmachine.posterior.mixture import Posterior, joined, warn_of_failures
from tapmachine.posterior.observations import as_examples
from tapmachine.solver.driver import Progress
from tapmachine.solver.starts import StartingPoint, fitting, starting_moments


@dataclass(frozen=True)
class PosteriorOptions:
    """Options of `denoise`, `impute` and `recover`.

    Args:
        n_neighbors: Number of examples used as initial states, the nearest neighbors of each observation (default: 3).
        temperature: Temperature T of the weights exp(−F/T) of the solutions (default: 1). T > 1 reduces the effect of
            differences in F, which improves the result if many values are missing. With T = inf, all distinct solutions
            have equal weight.
        tol: Convergence tolerance (default: 1e-8): of `solve` and, in `recover`, of the mean squared change in the
            means and variances of a signal's components during one iteration.
        max_sweeps: Maximum number of sweeps of `solve` (default: 1000); in `recover`, after the last iteration.
        max_iterations: Maximum number of iterations in `recover` (default: 300).
        callback: Function that is called with the `Progress` of the solver.

    Example:
        >>> import math
        >>> import torch
        >>> from tapmachine import Binary, impute, rbm
        >>> from tapmachine.posterior import PosteriorOptions
        >>> gaps = torch.tensor([[0.0, torch.nan]])
        >>> impute(rbm(Binary(2, field=1.0), Binary(2)), gaps, options=PosteriorOptions(temperature=math.inf)).mean
        tensor([[0.0000, 0.7309]])
    """

    n_neighbors: int = 3
    temperature: float = 1.0
    tol: float = 1e-8
    max_sweeps: int = 1000
    max_iterations: int = 300
    callback: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        for name in ("n_neighbors", "max_sweeps", "max_iterations"):
            check_count(name, getattr(self, name))
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature!r}; expected a number greater than 0")


@dataclass(frozen=True)
class Starts:
    """Initial states of the solver for all rows: those of the user, or default ones, which depend on examples.

    Attributes:
        examples: Examples as states of the visible layer, of shape (N, *state_shape); None if there are none.
        layers: Moments of the lowest layers for each of the user's initial states, of one or of all rows; None for
            default initial states.
        n_neighbors: Number of examples used for each row.
    """

    examples: Tensor | None
    layers: list[list[Moments]] | None = field(repr=False)
    n_neighbors: int

    @classmethod
    def of(
        cls,
        machine: BoltzmannMachine,
        data: Tensor | np.ndarray[Any, Any] | None,
        starts: Sequence[StartingPoint] | None,
        count: int,
        options: PosteriorOptions,
    ) -> "Starts":
        """Validate the examples and the initial states of `count` rows."""
        if starts is not None and data is not None:
            raise ValueError("data and starts cannot be combined; pass one of them")
        if starts is not None and len(starts) == 0:
            raise ValueError("starts is empty; expected at least one initial state")
        layers = None if starts is None else [_lowest_layers(machine, start, count) for start in starts]
        return cls(None if data is None else as_examples(machine, data), layers, options.n_neighbors)

    def __len__(self) -> int:
        return len(self.layers) if self.layers is not None else 1 if self.examples is None else 1 + self.n_neighbors

    def of_rows(self, rows: Tensor) -> list[list[Moments]] | None:
        """Return the user's initial states of selected rows; None for default ones."""
        if self.layers is None:
            return None
        return [[Moments(*(z[rows] for z in moments)) for moments in layers] for layers in self.layers]

    def neighbors(self, values: Tensor, seen_as: Tensor | None = None) -> list[Tensor]:  # (K, *state_shape) each
        """Return the examples nearest to each row of values, nearest first.

        Args:
            values: Values of each row, of shape (K, M), with NaN for missing values.
            seen_as: The examples in the same form, of shape (N, M) (default: their flattened states).
        """
        if self.examples is None:
            return []
        index = nearest_neighbors(
            self.examples.flatten(1) if seen_as is None else seen_as, values, min(self.n_neighbors, len(self.examples))
        )
        return [self.examples[of_rows] for of_rows in index.unbind(1)]


def _lowest_layers(machine: BoltzmannMachine, start: StartingPoint, count: int) -> list[Moments]:
    """Return the moments of all rows in the layers of an initial state, from the lowest layer upward."""
    layers = [moments for moments in starting_moments(machine, fitting(machine, start)) if moments is not None]
    if len(layers[0].mean) not in (1, count):
        raise ValueError(f"an element of starts has {len(layers[0].mean)} rows, but y has {count} rows")
    return [Moments(*(z.expand(count, *z.shape[1:]) for z in moments)) for moments in layers]


def infer(machine: BoltzmannMachine, count: int, rows_at_a_time: int, part: Callable[[Tensor], Posterior]) -> Posterior:
    """Compute the posterior of all rows in chunks, and issue a warning if rows have no converged solution.

    Args:
        machine: Machine whose dtype the result has.
        count: Number of rows.
        rows_at_a_time: Maximum number of rows in a chunk.
        part: Function that computes the posterior of the rows with given indices.
    """
    chunks = torch.arange(count, device=machine.device).split(max(1, rows_at_a_time))
    posterior = joined([part(rows) for rows in chunks])
    warn_of_failures(posterior.status)
    moments = tuple(Moments(*(z.to(machine.dtype) for z in layer)) for layer in posterior.moments)
    return replace(posterior, moments=moments, units=machine.layers[0])
