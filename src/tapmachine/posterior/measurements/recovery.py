"""Signals from measurements that mix their components, with a machine as the prior."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tapmachine.accelerator.precision import matmul_precision
from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.data.checks import check_count
from tapmachine.likelihood.slabs import is_gaussian_mixture
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.machine.gibbs_sampling import gibbs
from tapmachine.machine.whitening import can_be_whitened
from tapmachine.posterior.baselines import nearest_neighbors
from tapmachine.posterior.gaussian_mixture import exact_recovery
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine
from tapmachine.posterior.measurements.gamp import GAMP
from tapmachine.posterior.measurements.kinds import LinearMeasurements
from tapmachine.posterior.measurements.operators import FunctionOperator, Operator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior
from tapmachine.posterior.measurements.vamp import VAMP, ExpectationPropagation
from tapmachine.posterior.mixture import Posterior, joined, mixture, warn_of_failures
from tapmachine.posterior.observations import as_examples, check_free
from tapmachine.solver import AdaptiveTAP, Scheme
from tapmachine.solver.process import choose, from_below, join, select
from tapmachine.solver.starts import StartingPoint, fitting, prior_moments, starting_moments

EXACT = "exact"  # no engine: the posterior is a mixture of Gaussians
ENGINES: dict[str, type[Engine[Any]]] = {"gamp": GAMP, "vamp": VAMP, "ep": ExpectationPropagation}

N_NEIGHBORS = 3  # examples that solutions start from by default
NEIGHBOR_SHARE = 0.7  # of an example in a start; the rest is the start without one
N_SAMPLES, SAMPLE_SWEEPS = 100, 100  # of the machine, that solutions start from without examples
EVERY = 10  # iterations between looks at which signals have converged
CHUNK_VALUES = 2**26  # values held at a time
FLOOR = {torch.float32: 1e-7, torch.float64: 1e-12}  # least variance of the noise, as a share of the mean square of y
FIRST_NOISE = 0.1  # share of the mean square of y that is taken for noise before it is estimated
NOISE_ROWS, NOISE_TOLERANCE, NOISE_ITERATIONS = 100, 1e-3, 1000
LOCAL = 12.0  # measurements that depend on fewer than one in so many components are local
SMALL = 32  # size of the smaller side of a matrix up to which expectation propagation is best for all of them
MOST_FACTORIZED, MOST_DECOMPOSED = 1024, 4096  # sizes of the smaller side of a matrix


@torch.no_grad()
@matmul_precision("float32")
def recover(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Measurements,
    *,
    data: Tensor | np.ndarray[Any, Any] | None = None,
    n_neighbors: int = N_NEIGHBORS,
    starts: Sequence[StartingPoint] | None = None,
    temperature: float = 1.0,
    engine: Literal["gamp", "vamp", "ep"] | None = None,
    scheme: Scheme | None = None,
    tol: float = 1e-8,
    max_iterations: int = 300,
    max_sweeps: int = 1000,
) -> Posterior:
    """The posterior of signals given measurements that mix their components, with the machine as the prior.

    Approximate message passing turns the measurements into a tilt of each visible unit, to which the machine responds
    by a few sweeps of the solver, again and again until nothing changes. Distinct solutions are weighted by exp(−F).
    Linear measurements of a machine of a real-valued table have an exact posterior, which is computed instead, unless
    `engine` or `scheme` is given.

    Args:
        machine: any machine that is not conditioned.
        y: measurements, (K, M), one row per signal; NaN for measurements that are missing.
        channel: the matrix and the noise, such as `LinearMeasurements(F, noise=0.1)`.
        data: examples, (N, n_visible), such as the training data: solutions also start from those whose measurements
            are nearest to each y, which helps if there are few measurements.
        n_neighbors: number of such examples.
        starts: starting points to use instead: a list of data, (K, n_visible), or of any other starts of `solve`.
        temperature: solutions are weighted by exp(−F/T).
        engine: "gamp" (approximate message passing), for matrices with independent entries; "vamp" (vector approximate
            message passing), for any matrix whose measurements depend on many components; "ep" (expectation
            propagation), for few components and for local measurements such as a blur, which is slower. Default:
            chosen from the matrix.
        scheme: mean-field scheme of the machine (default: `TAP()`; `AdaptiveTAP()` for machines of real-valued tables).
        tol: tolerance. A signal has converged when an iteration changes the mean and variance of its components by
            less: the mean of the squared changes.
        max_iterations: maximum number of iterations.
        max_sweeps: maximum number of sweeps of the solver after the last iteration.

    Returns:
        The posterior of each signal. Its channel holds the noise if that was estimated.

    Warns:
        PosteriorWarning: if signals have no converged solution; see `status`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, LinearMeasurements, rbm, recover
        >>> machine = rbm(Binary(8), Binary(2))
        >>> x = torch.tensor([[1.0, 0, 0, 1, 1, 0, 1, 0]])
        >>> F = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
        >>> recover(machine, x @ F.T, LinearMeasurements(F, noise=0.01)).states
        tensor([[1., 0., 0., 1., 1., 0., 1., 0.]])
    """
    check_free(machine)
    n_neighbors, max_sweeps = check_count("n_neighbors", n_neighbors), check_count("max_sweeps", max_sweeps)
    max_iterations = check_count("max_iterations", max_iterations)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}; it must be greater than 0")
    if starts is not None and (data is not None or len(starts) == 0):
        raise ValueError("starts is empty; give one or more" if data is None else "give either data or starts")
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    channel = check_measurements(channel, machine)
    name = engine or fitting_engine(channel, machine if scheme is None else None)
    if name == EXACT:
        matrix, known = channel.operator.dense(), copy(channel)
        assert matrix is not None
        measured = channel.check_measurements(y).double() - channel.bias.double()
        posterior, known.noise = exact_recovery(machine, measured, matrix, channel.noise, known)
        return posterior
    if scheme is None and can_be_whitened(machine):  # plain TAP has no solution for strongly correlated columns
        scheme = AdaptiveTAP()
    kind = ENGINES[name]
    # Free energies are small differences of large terms; the functions of a user keep the machine's dtype.
    used = machine if isinstance(channel.operator, FunctionOperator) else in_double(machine)
    task = _Task.of(MachinePrior(used, scheme), y, channel, kind)
    examples = None if data is None else as_examples(used, data)
    neutral = _neutral_start(task.prior, examples)
    if channel.noise is None:
        task = task.with_estimated_noise(neutral)
    parts = []
    for rows in torch.arange(len(task.y), device=machine.device).split(task.rows_at_a_time):
        some = replace(task, y=task.y[rows])
        if starts is not None:
            layouts = [_given_start(used, start, neutral, rows, len(task.y)) for start in starts]
        else:
            layouts = _default_starts(some, neutral, examples, n_neighbors)
        solutions = [some.solve(layers, tol, max_iterations, max_sweeps) for layers in layouts]
        nothing = torch.zeros_like(solutions[0].free_energy)
        part = mixture(list(used.layers), solutions, temperature, nothing)
        parts.append(part._replace(moments=[Moments(*(z.to(machine.dtype) for z in layer)) for layer in part.moments]))
    posterior = joined(parts, task.channel, machine.layers[0])
    warn_of_failures(posterior.status, stacklevel=5)  # past two decorators
    return posterior


@dataclass(frozen=True)
class _Task:
    """Signals to recover: a prior, measurements of some signals, and how to go about it."""

    prior: MachinePrior
    y: Tensor  # (K, M), NaN if not observed
    channel: Measurements
    operator: Operator  # on the machine's device
    engine: type[Engine[Any]]

    @classmethod
    def of(
        cls, prior: MachinePrior, y: Tensor | np.ndarray[Any, Any], channel: Measurements, engine: type[Engine[Any]]
    ) -> "_Task":
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

    def with_estimated_noise(self, neutral: Layers) -> "_Task":
        """The task with the noise under which the measurements are most likely, the same for all signals."""
        some = replace(self, y=self.y[:: -(-len(self.y) // NOISE_ROWS)][: self.rows_at_a_time])
        known = copy(self.channel)
        known.noise = _EstimatedNoise(some).iterate(expanded(neutral, len(some.y)))
        return replace(self, channel=known)

    def noise_variance(self) -> Tensor:  # (K, 1)
        """Variance of the noise; a little even without noise, as what rounding leaves."""
        assert self.channel.noise is not None
        return self.smallest_variance().clamp(min=self.channel.noise**2)

    def smallest_variance(self) -> Tensor:  # (K, 1)
        tiny = torch.finfo(self.y.dtype).tiny ** 0.5
        return (FLOOR[self.y.dtype] * mean_square(self.y)).clamp(min=tiny)

    def solve(self, layers: Layers, tol: float, max_iterations: int, max_sweeps: int) -> Solution:
        """The solutions of all signals from one start each."""
        groups = self._groups()
        if len(groups) == 1:
            return groups[0][1]._solve(layers, tol, max_iterations, max_sweeps)
        parts, order = [], torch.cat([rows for rows, _ in groups]).argsort()
        for rows, task in groups:
            parts.append(task._solve(select(layers, rows), tol, max_iterations, max_sweeps))
        fields = ("moments", "tilts", "free_energy", "residual", "n_sweeps", "status")
        together = parts[0]
        for part in parts[1:]:
            together = Solution(*(join(getattr(together, name), getattr(part, name)) for name in fields))
        return together.select(order)

    def _groups(self) -> list[tuple[Tensor, "_Task"]]:
        """Signals with the same measurements missing, and a task for each such group."""
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

    def _solve(self, layers: Layers, tol: float, max_iterations: int, max_sweeps: int) -> Solution:
        engine = self.engine(self.prior, self.operator, self.channel, self.y, self.noise_variance())
        state, n_iterations, failed = _iterate(engine, layers, tol, max_iterations)
        every = torch.arange(len(self.y), device=self.y.device)
        solution = self.prior.settle(state.tilt, state.layers, tol, max_sweeps)
        value = engine.free_energy(state, solution.free_energy.double(), every)
        status = torch.where(state.change < tol, solution.status, int(Status.MAX_SWEEPS))
        status = torch.where(failed | ~torch.isfinite(value), int(Status.NONFINITE), status)
        return replace(solution, free_energy=value, n_sweeps=n_iterations, status=status.to(solution.status.dtype))


def _iterate(engine: Engine[Any], layers: Layers, tol: float, max_iterations: int) -> tuple[Any, Tensor, Tensor]:
    """The last state of each signal, its number of iterations, and whether it failed."""
    state = engine.begin(layers)
    rows = torch.arange(len(state.change), device=state.change.device)
    age, failed = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    finished: list[tuple[Any, ...]] = []  # state, rows, age and failed of signals that are done
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


class _EstimatedNoise:
    """Noise by expectation maximization along with the iterations: the fixed point maximizes the Bethe evidence."""

    def __init__(self, task: _Task) -> None:
        self.task, self.smallest = task, task.smallest_variance()
        self.variance = (FIRST_NOISE * mean_square(task.y)).mean()

    def iterate(self, layers: Layers) -> float:
        """The standard deviation of the noise."""
        groups = self.task._groups()
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
            self.variance = torch.cat(estimates).nanmedian().to(last.dtype)  # some signals may not be recovered
            if iteration % EVERY == 0:
                if float((self.variance - last).abs()) <= NOISE_TOLERANCE * float(last):
                    break
                last = self.variance
        return float(self.variance.sqrt())

    def _of(self, rows: Tensor) -> Tensor:
        return torch.maximum(self.smallest[rows], self.variance)


def check_measurements(channel: Measurements, machine: BoltzmannMachine) -> Measurements:
    """Raise a ValueError unless the channel measures something of the machine's visible units."""
    if not isinstance(channel, Measurements):
        raise ValueError(f"channel is {channel!r}; expected measurements such as LinearMeasurements(F, noise=0.1)")
    channel.check_size(int(np.prod(machine.layers[0].state_shape)))
    unmeasured = channel.operator.unmeasured()
    if unmeasured is not None and bool(unmeasured.all()):
        raise ValueError("matrix: all entries are 0, so that nothing is measured")
    return channel


def fitting_engine(channel: Measurements, machine: BoltzmannMachine | None = None) -> str:
    """The engine that fits measurements: whether each depends on few components, and how many there are.

    It is `EXACT` for linear measurements of a machine whose visible units are a mixture of Gaussians.
    """
    operator = channel.operator
    matrix, smaller = operator.dense(), min(operator.shape)
    if matrix is None:
        return "vamp" if operator.unmeasured() is None else "gamp"
    if machine is not None and isinstance(channel, LinearMeasurements) and is_gaussian_mixture(machine):
        return EXACT
    squares, tiny = matrix.double().square(), torch.finfo(torch.float64).tiny
    n_dependent = float((squares.sum(1) ** 2 / squares.square().sum(1).clamp(min=tiny)).mean())  # components
    is_local = n_dependent * LOCAL < operator.shape[1] and isinstance(channel, LinearMeasurements)
    unmeasured = operator.unmeasured()
    if is_local or (unmeasured is not None and bool(unmeasured.any())):  # one precision for all would be wrong
        return "ep" if smaller <= MOST_FACTORIZED else "gamp"
    if smaller <= SMALL:
        return "ep"
    return "vamp" if smaller <= MOST_DECOMPOSED else "gamp"


def mean_square(y: Tensor) -> Tensor:  # (K, M) -> (K, 1)
    """Mean square of the measurements that were observed."""
    return y.square().nanmean(1, keepdim=True).nan_to_num(0.0)


def expanded(layers: Layers, count: int) -> Layers:
    """One start for all signals."""
    return tuple(Moments(*(z.expand(count, *z.shape[1:]) for z in moments)) for moments in layers)


def _neutral_start(prior: MachinePrior, examples: Tensor | None) -> Layers:
    """A start that prefers no signal, (1, …): mean and variance of the examples, or of samples of the machine."""
    machine = prior.machine
    if examples is None:
        draws = torch.Generator(machine.device).manual_seed(0)
        no_tilt = Tilt(prior_moments(machine.layers[0], N_SAMPLES).mean * 0.0, 0.0)
        examples = gibbs(machine, machine.layers[0].sample(no_tilt, draws), SAMPLE_SWEEPS, draws)[0]
    mean = examples.mean(0, keepdim=True)
    visible = Moments(mean, (examples - mean).square().mean(0, keepdim=True))
    return _completed(machine, [visible])


def _default_starts(task: _Task, neutral: Layers, examples: Tensor | None, n_neighbors: int) -> list[Layers]:
    """The neutral start, and the examples whose measurements are nearest."""
    count = len(task.y)
    starts = [expanded(neutral, count)]
    if examples is None:
        return starts
    measured = task.channel.expected(task.operator.forward(examples.flatten(1)) + task.channel.bias.to(task.y))
    index = nearest_neighbors(measured, task.y, min(n_neighbors, len(examples)))
    mean, variance = starts[0][0]
    for neighbor in index.unbind(1):
        visible = Moments(torch.lerp(mean, examples[neighbor], NEIGHBOR_SHARE), variance)
        starts.append(_completed(task.prior.machine, [visible]))
    return starts


def _given_start(machine: BoltzmannMachine, start: StartingPoint, neutral: Layers, rows: Tensor, count: int) -> Layers:
    """A start of the user for some of the signals."""
    moments = starting_moments(machine, fitting(machine, start))
    assert moments[0] is not None
    if len(moments[0].mean) not in (1, count):
        raise ValueError(f"a start has {len(moments[0].mean)} rows, but y has {count}")
    visible, *others = (layer for layer in moments if layer is not None)
    if not bool(visible.variance.any()):  # data: without any variance, messages would be infinite
        visible = Moments(visible.mean, neutral[0].variance.expand_as(visible.mean))
    layers = _completed(machine, [visible, *others])
    some: Layers = select(expanded(layers, count) if len(layers[0].mean) == 1 else layers, rows)
    return some


def _completed(machine: BoltzmannMachine, moments: list[Moments]) -> Layers:
    """Moments of all layers, those that are missing from the layers below."""
    missing: list[Moments | None] = [*moments, *[None] * (len(machine.layers) - len(moments))]
    return tuple(from_below(list(machine.layers), list(machine.weights), missing))
