"""Recovery of signals from measurements with a machine as the prior."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tapmachine.accelerator.precision import full_precision
from tapmachine.beliefs import Moments, Tilt
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.machine.sampler import gibbs
from tapmachine.posterior.driver import PosteriorOptions, Starts, infer
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine
from tapmachine.posterior.measurements.exact import exact_recovery
from tapmachine.posterior.measurements.gamp import GAMP
from tapmachine.posterior.measurements.kinds import LinearMeasurements
from tapmachine.posterior.measurements.operators import FunctionOperator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior, expanded
from tapmachine.posterior.measurements.task import Task
from tapmachine.posterior.measurements.vamp import VAMP, ExpectationPropagation
from tapmachine.posterior.mixture import Posterior, mixture
from tapmachine.posterior.observations import check_free
from tapmachine.solver import Scheme
from tapmachine.solver.schemes.process import from_below
from tapmachine.solver.starts import StartingPoint, prior_moments
from tapmachine.solver.validity import default_scheme

EXACT = "exact"  # the posterior is a mixture of Gaussians and requires no engine
ENGINES: dict[str, type[Engine[Any]]] = {"gamp": GAMP, "vamp": VAMP, "ep": ExpectationPropagation}

EXAMPLE_WEIGHT = 0.7  # weight of an example in an initial state; the neutral state has the remaining weight
N_SAMPLES, SAMPLE_SWEEPS = 100, 100  # number of samples that are drawn if there are no examples, and number of sweeps
LOCAL = 12.0  # measurements that depend on fewer than one in 12 components are local
SMALL = 32  # for matrices whose smaller dimension is at most this number, expectation propagation is always best
MOST_FACTORIZED, MOST_DECOMPOSED = 1024, 4096  # limits on the smaller dimension of a matrix


@torch.no_grad()
@full_precision()
def recover(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Measurements,
    *,
    data: Tensor | np.ndarray[Any, Any] | None = None,
    starts: Sequence[StartingPoint] | None = None,
    engine: Literal["gamp", "vamp", "ep"] | None = None,
    scheme: Scheme | None = None,
    options: PosteriorOptions | None = None,
) -> Posterior:
    """Compute the posterior of signals given measurements that mix their components, with the machine as the prior.

    Approximate message passing converts the measurements to a tilt on each visible unit, and the machine responds with
    a few sweeps of the solver. These two steps are repeated until convergence. The posterior is a mixture of the
    distinct solutions, weighted by exp(−F). For linear measurements and a machine fitted to a real-valued table, the
    posterior is computed exactly, unless `engine` or `scheme` is specified.

    Args:
        machine: An unconditioned machine.
        y: Measurements, of shape (K, M), one row per signal, with NaN for missing measurements.
        channel: Measurement model with the matrix and the noise, such as `LinearMeasurements(F, noise=0.1)`.
        data: Examples, of shape (N, n_visible), such as the training data. The examples whose measurements are nearest
            to each row of y are used as additional initial states, which improves the result if there are few
            measurements.
        starts: List of initial states that replaces the default list. Each is a tensor of shape (K, n_visible), or
            another value that the argument `start` of `solve` accepts.
        engine: Message-passing algorithm (default: chosen from the matrix). "gamp" (generalized approximate message
            passing) is suited to matrices with independent entries. "vamp" (vector approximate message passing) is
            suited to any matrix whose measurements depend on many components. "ep" (expectation propagation) is slower;
            it is suited to signals with few components and to local measurements such as a blur.
        scheme: Mean-field scheme of the machine (default: `TAP()`; `AdaptiveTAP()` for machines fitted to real-valued
            tables).
        options: Number of neighbors, temperature, tolerance and other options (default: `PosteriorOptions()`).

    Returns:
        Posterior of each signal. Its attribute `channel` contains the estimated noise.

    Warns:
        PosteriorWarning: If signals have no converged solution; see `Posterior.status`.

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
    options = options or PosteriorOptions()
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    channel = check_measurements(channel, machine)
    name = engine or fitting_engine(channel, machine if scheme is None else None)
    exact = exact_recovery(machine, y, channel) if name == EXACT else None
    if exact is not None:
        return exact
    # Free energies are small differences of large terms, so float64 is used, except for user-defined functions.
    used = machine if isinstance(channel.operator, FunctionOperator) else in_double(machine)
    task = Task.of(MachinePrior(used, scheme or default_scheme(machine)), y, channel, ENGINES[name])
    initial = Starts.of(used, data, starts, len(task.y), options)
    neutral = _neutral_start(used, initial.examples)
    if channel.noise is None:
        task = task.with_estimated_noise(neutral)

    def part(rows: Tensor) -> Posterior:
        of_rows = replace(task, y=task.y[rows])
        layouts = _starts(of_rows, neutral, initial, rows)
        solutions = [of_rows.solve(layers, options) for layers in layouts]
        return mixture(list(used.layers), solutions, options.temperature, 0.0, task.channel, "recovery")

    return infer(machine, len(task.y), task.rows_at_a_time, part)


def check_measurements(channel: Measurements, machine: BoltzmannMachine) -> Measurements:
    """Validate a measurement channel for a machine and return it.

    Raises:
        ValueError: If the channel is not an instance of `Measurements`, or if its matrix is 0 or has the wrong shape.
    """
    if not isinstance(channel, Measurements):
        raise ValueError(f"channel is {channel!r}; expected measurements such as LinearMeasurements(F, noise=0.1)")
    channel.check_size(int(np.prod(machine.layers[0].state_shape)))
    unmeasured = channel.operator.unmeasured()
    if unmeasured is not None and bool(unmeasured.all()):
        raise ValueError("all entries of matrix are 0; expected at least one nonzero entry")
    return channel


def fitting_engine(channel: Measurements, machine: BoltzmannMachine | None = None) -> str:
    """Choose the engine based on the size of the matrix and the number of components per measurement.

    For linear measurements and a machine whose visible distribution is a mixture of Gaussians, the result is `EXACT`.
    """
    operator = channel.operator
    matrix, smaller = operator.dense(), min(operator.shape)
    if matrix is None:
        return "vamp" if operator.unmeasured() is None else "gamp"
    if machine is not None and isinstance(channel, LinearMeasurements):
        exact = mixture_of(machine)
        if exact is not None and not exact.blocks:
            return EXACT
    squares, tiny = matrix.double().square(), torch.finfo(torch.float64).tiny
    n_dependent = float((squares.sum(1) ** 2 / squares.square().sum(1).clamp(min=tiny)).mean())  # components
    is_local = n_dependent * LOCAL < operator.shape[1] and isinstance(channel, LinearMeasurements)
    unmeasured = operator.unmeasured()
    if is_local or (unmeasured is not None and bool(unmeasured.any())):  # components require separate precisions
        return "ep" if smaller <= MOST_FACTORIZED else "gamp"
    if smaller <= SMALL:
        return "ep"
    return "vamp" if smaller <= MOST_DECOMPOSED else "gamp"


def _neutral_start(machine: BoltzmannMachine, examples: Tensor | None) -> Layers:
    """Return an initial state with the mean and variance of the examples, or of samples drawn from the machine.

    The first dimension of the moments has size 1, since the state is the same for all signals.
    """
    if examples is None:
        generator = torch.Generator(machine.device).manual_seed(0)
        no_tilt = Tilt(prior_moments(machine.layers[0], N_SAMPLES).mean * 0.0, 0.0)
        examples = gibbs(machine, machine.layers[0].sample(no_tilt, generator), SAMPLE_SWEEPS, generator)[0]
    mean = examples.mean(0, keepdim=True)
    return _completed(machine, [Moments(mean, (examples - mean).square().mean(0, keepdim=True))])


def _starts(task: Task, neutral: Layers, initial: Starts, rows: Tensor) -> list[Layers]:
    """Return the user's initial states, or the neutral state and the examples with the nearest measurements."""
    machine, first = task.prior.machine, expanded(neutral, len(task.y))
    given = initial.of_rows(rows)
    if given is not None:  # data have zero variance, which would make messages infinite
        return [
            _completed(machine, [low if bool(low.variance.any()) else Moments(low.mean, first[0].variance), *others])
            for low, *others in given
        ]
    if initial.examples is None:
        return [first]
    measured = task.channel.expected(task.operator.forward(initial.examples.flatten(1)) + task.channel.bias.to(task.y))
    mean, variance = first[0]
    return [first] + [
        _completed(machine, [Moments(torch.lerp(mean, example, EXAMPLE_WEIGHT), variance)])
        for example in initial.neighbors(task.y, measured)
    ]


def _completed(machine: BoltzmannMachine, moments: list[Moments]) -> Layers:
    """Extend the moments of the lowest layers to all layers; missing moments are computed from the layer below."""
    missing: list[Moments | None] = [*moments, *[None] * (len(machine.layers) - len(moments))]
    return tuple(from_below(list(machine.layers), list(machine.weights), missing))
