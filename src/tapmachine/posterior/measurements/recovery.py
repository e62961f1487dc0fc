"""Recovery of signals from measurements that mix their components, with a machine as the prior."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tapmachine.accelerator.precision import matmul_precision
from tapmachine.beliefs import Moments
from tapmachine.data.checks import check_count
from tapmachine.likelihood.slabs import is_gaussian_mixture
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.machine.whitening import can_be_whitened
from tapmachine.posterior.gaussian_mixture import exact_recovery
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine
from tapmachine.posterior.measurements.gamp import GAMP
from tapmachine.posterior.measurements.kinds import LinearMeasurements
from tapmachine.posterior.measurements.operators import FunctionOperator
from tapmachine.posterior.measurements.prior import MachinePrior
from tapmachine.posterior.measurements.starts import default_starts, given_start, neutral_start
from tapmachine.posterior.measurements.task import Task
from tapmachine.posterior.measurements.vamp import VAMP, ExpectationPropagation
from tapmachine.posterior.mixture import Posterior, joined, mixture, warn_of_failures
from tapmachine.posterior.observations import as_examples, check_free
from tapmachine.solver import AdaptiveTAP, Scheme
from tapmachine.solver.starts import StartingPoint

EXACT = "exact"  # no engine: the posterior is a mixture of Gaussians
ENGINES: dict[str, type[Engine[Any]]] = {"gamp": GAMP, "vamp": VAMP, "ep": ExpectationPropagation}

N_NEIGHBORS = 3  # default number of examples used as initial states
LOCAL = 12.0  # measurements that depend on fewer than one in 12 components are local
SMALL = 32  # size of the smaller side of a matrix up to which expectation propagation is best for all matrices
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
    """Compute the posterior of signals given measurements that mix their components, with the machine as the prior.

    Approximate message passing converts the measurements to a tilt of each visible unit, to which the machine responds
    by a few sweeps of the solver; this is repeated until convergence. Distinct solutions are weighted by exp(−F).
    Linear measurements of a machine of a real-valued table have an exact posterior, which is used unless `engine` or
    `scheme` is set.

    Args:
        machine: Any machine that is not conditioned.
        y: Measurements, (K, M), one row per signal; NaN for missing measurements.
        channel: The matrix and the noise, such as `LinearMeasurements(F, noise=0.1)`.
        data: Examples, (N, n_visible), such as the training data: those whose measurements are nearest to each y are
            used as additional initial states, which helps if there are few measurements.
        n_neighbors: Number of such examples.
        starts: Initial states to use instead: a list of data, (K, n_visible), or of any other `start` of `solve`.
        temperature: Solutions are weighted by exp(−F/T).
        engine: "gamp" (approximate message passing), for matrices with independent entries; "vamp" (vector approximate
            message passing), for any matrix whose measurements depend on many components; "ep" (expectation
            propagation), for few components and for local measurements such as a blur, which is slower. Default:
            chosen from the matrix.
        scheme: Mean-field scheme of the machine (default: `TAP()`; `AdaptiveTAP()` for machines of real-valued tables).
        tol: Convergence tolerance for the mean squared change, in an iteration, of the mean and variance of a signal's
            components.
        max_iterations: Maximum number of iterations.
        max_sweeps: Maximum number of sweeps of the solver after the last iteration.

    Returns:
        The posterior of each signal. Its channel contains the noise if it was estimated.

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
        raise ValueError("starts is empty; expected at least one" if data is None else "use either data or starts")
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
    # Free energies are small differences of large terms; user-defined functions keep the machine's dtype.
    used = machine if isinstance(channel.operator, FunctionOperator) else in_double(machine)
    task = Task.of(MachinePrior(used, scheme), y, channel, kind)
    examples = None if data is None else as_examples(used, data)
    neutral = neutral_start(task.prior, examples)
    if channel.noise is None:
        task = task.with_estimated_noise(neutral)
    parts = []
    for rows in torch.arange(len(task.y), device=machine.device).split(task.rows_at_a_time):
        some = replace(task, y=task.y[rows])
        if starts is not None:
            layouts = [given_start(used, start, neutral, rows, len(task.y)) for start in starts]
        else:
            layouts = default_starts(some, neutral, examples, n_neighbors)
        solutions = [some.solve(layers, tol, max_iterations, max_sweeps) for layers in layouts]
        nothing = torch.zeros_like(solutions[0].free_energy)
        part = mixture(list(used.layers), solutions, temperature, nothing)
        parts.append(part._replace(moments=[Moments(*(z.to(machine.dtype) for z in layer)) for layer in part.moments]))
    posterior = joined(parts, task.channel, machine.layers[0])
    warn_of_failures(posterior.status, stacklevel=5)  # past two decorators
    return posterior


def check_measurements(channel: Measurements, machine: BoltzmannMachine) -> Measurements:
    """Raise a ValueError unless the channel measures something of the machine's visible units."""
    if not isinstance(channel, Measurements):
        raise ValueError(f"channel is {channel!r}; expected measurements such as LinearMeasurements(F, noise=0.1)")
    channel.check_size(int(np.prod(machine.layers[0].state_shape)))
    unmeasured = channel.operator.unmeasured()
    if unmeasured is not None and bool(unmeasured.all()):
        raise ValueError("matrix: all entries are 0, so nothing is measured")
    return channel


def fitting_engine(channel: Measurements, machine: BoltzmannMachine | None = None) -> str:
    """Choose the engine for measurements, from their number and whether each depends on few components.

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
