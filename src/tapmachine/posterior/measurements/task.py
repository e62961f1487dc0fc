"""Recovery of a set of signals: iterations, noise estimation and solutions."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Status
from tapmachine.posterior.driver import PosteriorOptions
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.linear_relation import LinearRelation
from tapmachine.posterior.measurements.prior import Layers, MachinePrior, expanded
from tapmachine.posterior.measurements.vamp import VAMP
from tapmachine.solver.schemes.process import choose, join, select

EVERY = 10  # number of iterations between convergence checks
CHUNK_VALUES = 2**26  # maximum number of values in memory
FLOOR = 1e-12  # smallest noise variance, relative to the mean square of y
FIRST_NOISE = 0.1  # initial noise variance for its estimation, relative to the mean square of y
NOISE_ROWS, NOISE_TOLERANCE, NOISE_ITERATIONS = 100, 1e-3, 1000


@dataclass(frozen=True)
class Task:
    """A set of signals to recover, with their prior, measurements, and the solver for z = Fx."""

    prior: MachinePrior
    y: Tensor  # (K, M), NaN if not observed
    channel: Measurements
    relation: LinearRelation

    @property
    def rows_at_a_time(self) -> int:
        values = 8 * (sum(self.prior.machine.sizes) - self.relation.matrix.shape[1]) + self.relation.values_per_signal
        return max(1, CHUNK_VALUES // values)

    def with_estimated_noise(self, neutral: Layers) -> "Task":
        """Return a task in which the noise is set to its maximum-likelihood estimate, the same for all signals."""
        sample = replace(self, y=self.y[:: -(-len(self.y) // NOISE_ROWS)][: self.rows_at_a_time])
        known = copy(self.channel)
        known.noise = sample.estimated_noise(expanded(neutral, len(sample.y)))
        return replace(self, channel=known)

    def smallest_variance(self) -> Tensor:  # (K, 1)
        """Return a small positive variance of the noise of each signal, to allow for rounding errors."""
        mean_square = self.y.square().nanmean(1, keepdim=True).nan_to_num(0.0)
        return (FLOOR * mean_square).clamp(min=torch.finfo(self.y.dtype).tiny ** 0.5)

    def solve(self, layers: Layers, options: PosteriorOptions) -> Solution:
        """Compute the solutions of all signals, starting from one initial state per signal."""
        parts = [task._solve(select(layers, rows), options) for rows, task in self.groups]
        fields = ("moments", "tilts", "free_energy", "residual", "n_sweeps", "status")
        together = parts[0]
        for part in parts[1:]:
            together = Solution(*(join(getattr(together, name), getattr(part, name)) for name in fields))
        return together.select(torch.cat([rows for rows, _ in self.groups]).argsort())

    @cached_property
    def groups(self) -> list[tuple[Tensor, "Task"]]:
        """Split the signals into groups with the same missing measurements; return their indices and tasks."""
        missing = torch.isnan(self.y)
        if not bool(missing.any()):
            return [(torch.arange(len(self.y), device=self.y.device), self)]
        patterns, group = missing.unique(dim=0, return_inverse=True)
        groups = []
        for index, pattern in enumerate(patterns):
            rows, kept = (group == index).nonzero().squeeze(1), ~pattern
            channel = copy(self.channel)
            channel.bias = self.channel.bias if self.channel.bias.dim() == 0 else self.channel.bias[kept.cpu()]
            relation = type(self.relation)(self.relation.matrix[kept])
            groups.append((rows, replace(self, y=self.y[rows][:, kept], channel=channel, relation=relation)))
        return groups

    def _engine(self, noise_variance: Tensor) -> VAMP:
        return VAMP(self.prior, self.relation, self.channel, self.y, noise_variance)

    def _solve(self, layers: Layers, options: PosteriorOptions) -> Solution:
        assert self.channel.noise is not None
        engine = self._engine(self.smallest_variance().clamp(min=self.channel.noise**2))
        state, n_iterations, failed = _iterate(engine, layers, options.tol, options.max_iterations)
        every = torch.arange(len(self.y), device=self.y.device)
        solution = self.prior.settle(state.tilt, state.layers, options)
        value = engine.free_energy(state, solution.free_energy, every)
        status = torch.where(state.change < options.tol, solution.status, int(Status.MAX_SWEEPS))
        status = torch.where(failed | ~torch.isfinite(value), int(Status.NONFINITE), status)
        return replace(solution, free_energy=value, n_sweeps=n_iterations, status=status.to(solution.status.dtype))

    def estimated_noise(self, layers: Layers) -> float:
        """Estimate the standard deviation of the noise by expectation maximization during the iterations.

        The estimate maximizes the Bethe evidence, starting from the given moments of all layers.
        """
        smallest = self.smallest_variance()
        variance = last = (FIRST_NOISE * self.y.square().nanmean(1).nan_to_num(0.0)).mean()
        engines = [task._engine(smallest[rows].clamp(min=variance)) for rows, task in self.groups]
        states = [engine.begin(select(layers, rows)) for engine, (rows, _) in zip(engines, self.groups, strict=True)]
        for iteration in range(1, NOISE_ITERATIONS + 1):
            estimates = []
            for index, (engine, (rows, _)) in enumerate(zip(engines, self.groups, strict=True)):
                every = torch.arange(len(rows), device=rows.device)
                engine.noise_variance = smallest[rows].clamp(min=variance)
                states[index] = engine.step(states[index], every)
                z = engine.about_outputs(states[index], every)
                estimates.append(((engine.y - z.mean) ** 2 + z.variance).mean(1))
            variance = torch.cat(estimates).nanmedian()  # recovery of some signals may fail
            if iteration % EVERY == 0:
                if float((variance - last).abs()) <= NOISE_TOLERANCE * float(last):
                    break
                last = variance
        return float(variance.sqrt())


def _iterate(engine: VAMP, layers: Layers, tol: float, max_iterations: int) -> tuple[Any, Tensor, Tensor]:
    """Iterate until convergence.

    Returns:
        The final state of each signal, the number of iterations, and a mask of the signals that failed.
    """
    state = engine.begin(layers)
    rows = torch.arange(len(state.change), device=state.change.device)
    age, failed = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    finished: list[tuple[Any, ...]] = []  # state, rows, age and failure mask of finished signals
    for iteration in range(1, max_iterations + 1):
        new = engine.step(state, rows)
        finite = torch.isfinite(new.change)
        state, failed, age = choose(finite, new, state), failed | ~finite, age + 1
        if iteration % EVERY and iteration < max_iterations:
            continue
        done = (state.change < tol) | failed | (iteration == max_iterations)
        if bool(done.any()):
            finished.append(select((state, rows, age, failed), done))
            state, rows, age, failed = select((state, rows, age, failed), ~done)
        if len(rows) == 0:
            break
    together = finished[0]
    for part in finished[1:]:
        together = join(together, part)
    state, rows, age, failed = select(together, together[1].argsort())
    return state, age, failed
