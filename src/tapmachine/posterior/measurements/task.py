"""Recovery of a set of signals with one engine: iterations, noise estimation and solutions."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Status
from tapmachine.posterior.driver import PosteriorOptions
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine
from tapmachine.posterior.measurements.gamp import GAMP
from tapmachine.posterior.measurements.operators import Operator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior, expanded
from tapmachine.posterior.measurements.vamp import ExpectationPropagation
from tapmachine.solver.schemes.process import choose, join, select

EVERY = 10  # number of iterations between convergence checks
CHUNK_VALUES = 2**26  # maximum number of values in memory
FLOOR = {torch.float32: 1e-7, torch.float64: 1e-12}  # smallest noise variance, relative to the mean square of y
FIRST_NOISE = 0.1  # initial noise variance for its estimation, relative to the mean square of y
NOISE_ROWS, NOISE_TOLERANCE, NOISE_ITERATIONS = 100, 1e-3, 1000


@dataclass(frozen=True)
class Task:
    """A set of signals to recover, with their prior, measurements and engine."""

    prior: MachinePrior
    y: Tensor  # (K, M), NaN if not observed
    channel: Measurements
    operator: Operator  # on the machine's device
    engine: type[Engine[Any]]

    @classmethod
    def of(
        cls, prior: MachinePrior, y: Tensor | np.ndarray[Any, Any], channel: Measurements, engine: type[Engine[Any]]
    ) -> "Task":
        machine = prior.machine
        measured = channel.check_measurements(y).to(machine.device, machine.dtype)
        return cls(prior, measured, channel, channel.operator.to(machine.device, machine.dtype), engine)

    @property
    def rows_at_a_time(self) -> int:
        m, n = self.operator.shape
        values = 8 * (sum(self.prior.machine.sizes) + m)
        if self.engine is ExpectationPropagation:
            values += 3 * min(m, n) * max(m, n)
        return max(1, CHUNK_VALUES // values)

    def with_estimated_noise(self, neutral: Layers) -> "Task":
        """Return a task in which the noise is set to its maximum-likelihood estimate, the same for all signals."""
        sample = replace(self, y=self.y[:: -(-len(self.y) // NOISE_ROWS)][: self.rows_at_a_time])
        known = copy(self.channel)
        known.noise = EstimatedNoise(sample).iterate(expanded(neutral, len(sample.y)))
        return replace(self, channel=known)

    def noise_variance(self) -> Tensor:  # (K, 1)
        """Variance of the noise of each signal, with a small positive minimum to allow for rounding errors."""
        assert self.channel.noise is not None
        return self.smallest_variance().clamp(min=self.channel.noise**2)

    def smallest_variance(self) -> Tensor:  # (K, 1)
        tiny = torch.finfo(self.y.dtype).tiny ** 0.5
        return (FLOOR[self.y.dtype] * mean_square(self.y)).clamp(min=tiny)

    def solve(self, layers: Layers, options: PosteriorOptions) -> Solution:
        """Compute the solutions of all signals, starting from one initial state per signal."""
        if len(self.groups) == 1:
            return self.groups[0][1]._solve(layers, options)
        parts, order = [], torch.cat([rows for rows, _ in self.groups]).argsort()
        for rows, task in self.groups:
            parts.append(task._solve(select(layers, rows), options))
        fields = ("moments", "tilts", "free_energy", "residual", "n_sweeps", "status")
        together = parts[0]
        for part in parts[1:]:
            together = Solution(*(join(getattr(together, name), getattr(part, name)) for name in fields))
        return together.select(order)

    @cached_property
    def groups(self) -> list[tuple[Tensor, "Task"]]:
        """Split the signals into groups with the same missing measurements; return their indices and tasks."""
        missing = torch.isnan(self.y)
        everything = torch.arange(len(self.y), device=self.y.device)
        if self.engine is GAMP or not bool(missing.any()):
            return [(everything, self)]
        patterns, group = missing.unique(dim=0, return_inverse=True)
        groups = []
        for index, pattern in enumerate(patterns):
            rows, kept = (group == index).nonzero().squeeze(1), (~pattern).nonzero().squeeze(1)
            channel = copy(self.channel)
            channel.bias = self.channel.bias if self.channel.bias.dim() == 0 else self.channel.bias[kept.cpu()]
            y, operator = self.y[rows][:, kept], self.operator.rows(kept)
            groups.append((rows, replace(self, y=y, channel=channel, operator=operator)))
        return groups

    def _solve(self, layers: Layers, options: PosteriorOptions) -> Solution:
        engine = self.engine(self.prior, self.operator, self.channel, self.y, self.noise_variance())
        state, n_iterations, failed = _iterate(engine, layers, options.tol, options.max_iterations)
        every = torch.arange(len(self.y), device=self.y.device)
        solution = self.prior.settle(state.tilt, state.layers, options)
        value = engine.free_energy(state, solution.free_energy.double(), every)
        status = torch.where(state.change < options.tol, solution.status, int(Status.MAX_SWEEPS))
        status = torch.where(failed | ~torch.isfinite(value), int(Status.NONFINITE), status)
        return replace(solution, free_energy=value, n_sweeps=n_iterations, status=status.to(solution.status.dtype))


def _iterate(engine: Engine[Any], layers: Layers, tol: float, max_iterations: int) -> tuple[Any, Tensor, Tensor]:
    """Run an engine until convergence.

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


class EstimatedNoise:
    """Noise estimation by expectation maximization during the iterations, which maximizes the Bethe evidence."""

    def __init__(self, task: Task) -> None:
        self.task, self.smallest = task, task.smallest_variance()
        self.variance = (FIRST_NOISE * mean_square(task.y)).mean()

    def iterate(self, layers: Layers) -> float:
        """Run the iterations and return the estimated standard deviation of the noise."""
        groups = self.task.groups
        engines = [
            task.engine(task.prior, task.operator, task.channel, task.y, self._of(rows)) for rows, task in groups
        ]
        states = [engine.begin(select(layers, rows)) for engine, (rows, _) in zip(engines, groups, strict=True)]
        last = self.variance
        for iteration in range(1, NOISE_ITERATIONS + 1):
            estimates = []
            for index, (engine, (rows, _)) in enumerate(zip(engines, groups, strict=True)):
                every = torch.arange(len(rows), device=rows.device)
                engine.noise_variance = self._of(rows)
                states[index] = engine.step(states[index], every)
                z = engine.about_outputs(states[index], every)
                squares = ((engine.y - z.mean) ** 2 + z.variance).where(engine.seen, 0.0)
                estimates.append(squares.sum(1) / engine.seen.sum(1).clamp(min=1))
            self.variance = torch.cat(estimates).nanmedian().to(last.dtype)  # recovery of some signals may fail
            if iteration % EVERY == 0:
                if float((self.variance - last).abs()) <= NOISE_TOLERANCE * float(last):
                    break
                last = self.variance
        return float(self.variance.sqrt())

    def _of(self, rows: Tensor) -> Tensor:
        return torch.maximum(self.smallest[rows], self.variance)


def mean_square(y: Tensor) -> Tensor:  # (K, M) -> (K, 1)
    """Compute the mean square of the observed measurements of each signal."""
    return y.square().nanmean(1, keepdim=True).nan_to_num(0.0)
