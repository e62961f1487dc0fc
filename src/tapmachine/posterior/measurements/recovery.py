"""Recovery of signals from measurements with a machine as the prior."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tapmachine.accelerator.precision import full_precision
from tapmachine.beliefs import Moments
from tapmachine.data.checks import check_count
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine
from tapmachine.posterior.measurements.exact import exact_recovery
from tapmachine.posterior.measurements.gamp import GAMP
from tapmachine.posterior.measurements.kinds import LinearMeasurements
from tapmachine.posterior.measurements.operators import FunctionOperator
from tapmachine.posterior.measurements.prior import MachinePrior
from tapmachine.posterior.measurements.starts import default_starts, given_start, neutral_start
from tapmachine.posterior.measurements.task import Task
from tapmachine.posterior.measurements.vamp import VAMP, ExpectationPropagation
from tapmachine.posterior.mixture import Posterior, joined, mixture, warn_of_failures
from tapmachine.posterior.observations import as_examples, check_free
from tapmachine.solver import Scheme
from tapmachine.solver.starts import StartingPoint
from tapmachine.solver.validity import default_scheme

EXACT = "exact"  # the posterior is a mixture of Gaussians and requires no engine
ENGINES: dict[str, type[Engine[Any]]] = {"gamp": GAMP, "vamp": VAMP, "ep": ExpectationPropagation}

N_NEIGHBORS = 3  # default number of examples used as initial states
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
        n_neighbors: Number of examples used as initial states (default: 3).
        starts: List of initial states that replaces the default list. Each is a tensor of shape (K, n_visible), or
            another value that the argument `start` of `solve` accepts.
        temperature: Temperature T of the weights exp(−F/T) of the solutions (default: 1).
        engine: Message-passing algorithm (default: chosen from the matrix). "gamp" (generalized approximate message
            passing) is suited to matrices with independent entries. "vamp" (vector approximate message passing) is
            suited to any matrix whose measurements depend on many components. "ep" (expectation propagation) is slower;
            it is suited to signals with few components and to local measurements such as a blur.
        scheme: Mean-field scheme of the machine (default: `TAP()`; `AdaptiveTAP()` for machines fitted to real-valued
            tables).
        tol: Convergence tolerance for the mean squared change in the means and variances of a signal's components
            during one iteration (default: 1e-8).
        max_iterations: Maximum number of iterations (default: 300).
        max_sweeps: Maximum number of sweeps of the solver after the last iteration (default: 1000).

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
    n_neighbors, max_sweeps = check_count("n_neighbors", n_neighbors), check_count("max_sweeps", max_sweeps)
    max_iterations = check_count("max_iterations", max_iterations)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}; expected a number greater than 0")
    if starts is not None and (data is not None or len(starts) == 0):
        problem = "starts is empty; expected at least one initial state"
        raise ValueError(problem if data is None else "data and starts cannot be combined; pass one of them")
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    channel = check_measurements(channel, machine)
    name = engine or fitting_engine(channel, machine if scheme is None else None)
    exact = exact_recovery(machine, y, channel) if name == EXACT else None
    if exact is not None:
        return exact
    scheme = scheme or default_scheme(machine)
    kind = ENGINES[name]
    # Free energies are small differences of large terms, so float64 is used, except for user-defined functions.
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
    warn_of_failures(posterior.status)
    return posterior


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
