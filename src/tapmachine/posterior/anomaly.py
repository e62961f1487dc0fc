"""How surprising rows are, as a whole and unit by unit."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Tilt
from tapmachine.channels import Missing
from tapmachine.channels.observations import check_alphabet, is_nan
from tapmachine.conditioning import clamp
from tapmachine.inference import Scheme, random_start, solve
from tapmachine.inference.starts import Start
from tapmachine.likelihood.pseudo import log_conditionals
from tapmachine.likelihood.score import for_scoring, in_double
from tapmachine.likelihood.tap import (
    MAX_SWEEPS,
    TOLERANCE,
    different_solutions,
    solve_from_rows,
    tap_log_likelihood,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.baselines import nearest_neighbours, pointwise_estimate
from tapmachine.posterior.denoise import denoise
from tapmachine.posterior.mixture import PosteriorWarning
from tapmachine.posterior.observations import as_observations

PARTICLES = 4096  # units of rows that are solved for at a time
N_RANDOM = 100  # random points that the free machine is solved from, where there are no complete rows
N_NEAREST = 5  # of its solutions that rows with gaps start from


@torch.no_grad()
def anomaly_score(
    machine: BoltzmannMachine,
    x: Tensor | np.ndarray[Any, Any],
    solutions: Solution | None = None,
    scheme: Scheme | None = None,
) -> Tensor:  # (K,), float64
    """−ln P(x) of each row in nats, by TAP: the higher, the more surprising. What is missing, NaN, is averaged over.

    Rows with gaps have fewer values to be surprised by: compare them with rows that have the same ones.

    Args:
        machine: any machine that is not conditioned.
        x: rows, (K, n_visible).
        solutions: of the free machine, as for `tap_log_likelihood`; without them it is solved from the complete rows,
            or from random points, if there are none.
        scheme: `TAP()` unless given.

    Returns:
        The scores, NaN for rows that have no converged solution.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, anomaly_score, rbm
        >>> machine = rbm(Binary(2, field=2.0), Binary(2))
        >>> anomaly_score(machine, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, torch.nan]]))
        tensor([0.2539, 4.2537, 0.1269], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    check_alphabet(x, machine.units()[0])
    double, gaps = in_double(machine), is_nan(x)
    complete, empty = ~gaps.any(1), gaps.all(1)
    score = torch.full((len(x),), torch.nan, dtype=torch.float64, device=x.device)
    whole = _as_data(machine, x[complete])
    if solutions is None:
        solutions = (
            solve_from_rows(machine, whole, scheme)
            if len(whole)
            else solve(double, random_start(double, N_RANDOM), scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
        )
    different = different_solutions(machine, solutions, scheme).solutions
    log_partition = (-different.free_energy.double()).logsumexp(0)
    if len(whole):
        score[complete] = -tap_log_likelihood(machine, whole, solutions, scheme=scheme).log_sum_exp.values
    some = ~complete & ~empty
    if bool(some.any()):
        score[some] = _with_gaps(double, x[some].to(double.dtype), different, scheme) + log_partition
    return score.masked_fill(empty, 0.0)  # what says nothing is no surprise


def _with_gaps(machine: BoltzmannMachine, x: Tensor, solutions: Solution, scheme: Scheme | None) -> Tensor:  # (K,)
    """−ln of the weight of what is there, from the free machine's solutions that are nearest to it; NaN without."""
    units = machine.units()[0]
    own = pointwise_estimate(units, x, Missing())
    seen = own.mean.masked_fill(is_nan(x).view(*x.shape, *[1] * (own.mean.dim() - 2)), torch.nan)
    near = nearest_neighbours(solutions.moments[0].mean.flatten(1), seen.flatten(1), min(N_NEAREST, len(solutions)))
    starts: list[Start] = [own, *(list(solutions.select(numbers).moments) for numbers in near.unbind(1))]
    posterior = denoise(machine, x, Missing(), starts=starts, scheme=scheme)
    return posterior.free_energy.where(posterior.converged, torch.nan)


def _as_data(machine: BoltzmannMachine, x: Tensor) -> Tensor:
    """Complete rows as data: numbers of states are whole."""
    return x.long() if len(machine.units()[0].state_shape) > 1 else x


@torch.no_grad()
def surprise(
    machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], scheme: Scheme | None = None
) -> Tensor:  # (K, n), float64
    """−ln P(x_i | all other visible units) of each value, in nats: which parts of a row do not fit the rest.

    Exact with one hidden layer or none. With more it is TAP's, by a solution for each value.

    Args:
        machine: any machine that is not conditioned.
        x: complete rows, (K, n_visible).
        scheme: for deep machines; `TAP()` unless given.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, surprise
        >>> surprise(rbm(Binary(2, field=2.0), Binary(2)), torch.tensor([[1.0, 0.0]]))
        tensor([[0.1269, 2.1262]], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    check_alphabet(x, machine.units()[0])
    if bool(is_nan(x).any()):
        raise ValueError(f"x has gaps, the first in row {int(is_nan(x).any(1).nonzero()[0])}; fill them by impute()")
    double, rows = for_scoring(machine, _as_data(machine, x))
    units = double.units()[0]
    everything = torch.arange(units.n, device=rows.device)
    if len(machine.layers) <= 2:
        return -log_conditionals(double, rows, everything.expand(len(rows), -1))
    pairs = torch.cartesian_prod(torch.arange(len(rows), device=rows.device), everything)
    parts, failed = [], 0
    for some in pairs.split(PARTICLES):
        row, unit = some.unbind(1)
        solution = solve(clamp(double, rows[row], mask=everything != unit.unsqueeze(1)), None, scheme, tol=TOLERANCE)
        tilt = Tilt(*(torch.as_tensor(z) for z in solution.tilts[0]))
        exponent = rows[row] * tilt.field - 0.5 * tilt.precision * rows[row] ** 2
        log_joint = units.log_prior(rows[row], validate=False) + units.per_unit(exponent)
        found = (units.log_partition(tilt) - log_joint).gather(1, unit.unsqueeze(1)).squeeze(1)
        parts.append(found.where(solution.converged, torch.nan))
        failed += int((~solution.converged).sum())
    if failed:
        warnings.warn(f"{failed} of {len(pairs)} values have no converged solution, and are NaN", PosteriorWarning, 3)
    return torch.cat(parts).view(len(rows), units.n)
