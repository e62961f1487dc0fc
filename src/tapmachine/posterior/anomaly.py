"""Anomaly scores of rows and of single values."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Tilt
from tapmachine.data.errors import PosteriorWarning, warn
from tapmachine.likelihood.pseudo import log_conditionals
from tapmachine.likelihood.tap import MAX_SWEEPS, TOLERANCE, different_solutions, solve_from_rows, tap_log_likelihood
from tapmachine.likelihood.unbiased import unbiased_log_likelihood, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, in_double
from tapmachine.machine.conditioning import clamp
from tapmachine.machine.whitening import models_correlations
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate
from tapmachine.posterior.channels import Missing
from tapmachine.posterior.channels.evidence import check_alphabet, is_nan
from tapmachine.posterior.denoising import denoise
from tapmachine.posterior.observations import as_observations
from tapmachine.solver import Scheme, random_start, solve
from tapmachine.solver.starts import StartingPoint

PARTICLES = 4096  # number of particles solved at a time
N_RANDOM = 100  # number of random initial states of the unconditioned machine if no row is complete
N_NEAREST = 5  # number of nearest solutions used as initial states of rows with missing values


@torch.no_grad()
def anomaly_score(
    machine: BoltzmannMachine,
    x: Tensor | np.ndarray[Any, Any],
    solutions: Solution | None = None,
    scheme: Scheme | None = None,
) -> Tensor:  # (K,), float64
    """Compute the anomaly score −ln P(x) of each row in nats, using TAP.

    Higher scores indicate more anomalous rows. Missing values are marginalized out, which generally lowers the score of
    a row; compare such rows only with rows in which the same values are missing.

    Args:
        machine: An unconditioned machine.
        x: Rows, of shape (K, n_visible), with NaN for missing values.
        solutions: Solutions of the unconditioned machine (default: computed from the complete rows, or from random
            initial states if no row is complete).
        scheme: Mean-field scheme (default: `TAP()`). TAP has no solution for machines fitted to real-valued tables. By
            default, these machines are scored with the exact ln Z if they have few `SpikeSlab` units, and otherwise
            with an estimate of ln Z from annealed importance sampling.

    Returns:
        Scores, of shape (K,). The score is NaN for rows without a converged solution, and for rows of real-valued
        tables that contain missing values; impute these values first.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.posterior import anomaly_score
        >>> machine = rbm(Binary(2, field=2.0), Binary(2))
        >>> anomaly_score(machine, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, torch.nan]]))
        tensor([0.2539, 4.2537, 0.1269], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    check_alphabet(x, machine.layers[0])
    double, gaps = in_double(machine), is_nan(x)
    complete, empty = ~gaps.any(1), gaps.all(1)
    score = torch.full((len(x),), torch.nan, dtype=torch.float64, device=x.device)
    whole = machine.layers[0].from_data(x[complete])
    if scheme is None and models_correlations(double):
        return _exact_scores(double, whole, score, complete, empty)
    if solutions is None:
        solutions = (
            solve_from_rows(machine, whole, scheme)
            if len(whole)
            else solve(double, random_start(double, N_RANDOM), scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
        )
    distinct = different_solutions(machine, solutions, scheme).solutions
    log_partition = (-distinct.free_energy.double()).logsumexp(0)
    if len(whole):
        score[complete] = -tap_log_likelihood(machine, whole, solutions, scheme=scheme).log_sum_exp.values
    some = ~complete & ~empty
    if bool(some.any()):
        score[some] = _with_gaps(double, x[some].to(double.dtype), distinct, scheme) + log_partition
    return score.masked_fill(empty, 0.0)  # a row without observed values has probability 1


def _exact_scores(machine: BoltzmannMachine, whole: Tensor, score: Tensor, complete: Tensor, empty: Tensor) -> Tensor:
    """Compute the scores of complete rows, with the exact ln Z or with an annealed estimate."""
    if len(whole):
        partition = unbiased_log_partition(machine, whole)
        score[complete] = -unbiased_log_likelihood(machine, whole, partition).values
    n_gappy = int((~complete & ~empty).sum())
    if n_gappy:
        warn(f"{n_gappy} rows with missing values were not scored; impute them first", PosteriorWarning)
    return score.masked_fill(empty, 0.0)


def _with_gaps(machine: BoltzmannMachine, x: Tensor, solutions: Solution, scheme: Scheme | None) -> Tensor:  # (K,)
    """Compute the negative log-weight of the observed values in each row; NaN if not converged.

    The solver is started from the solutions that are nearest to the observed values.
    """
    units = machine.layers[0]
    pointwise = pointwise_estimate(units, x, Missing())
    seen = pointwise.mean.masked_fill(is_nan(x).view(*x.shape, *[1] * (pointwise.mean.dim() - 2)), torch.nan)
    near = nearest_neighbors(solutions.moments[0].mean.flatten(1), seen.flatten(1), min(N_NEAREST, len(solutions)))
    starts: list[StartingPoint] = [pointwise, *(list(solutions.select(index).moments) for index in near.unbind(1))]
    posterior = denoise(machine, x, Missing(), starts=starts, scheme=scheme)
    return posterior.free_energy.where(posterior.converged, torch.nan)


@torch.no_grad()
def conditional_surprise(
    machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], scheme: Scheme | None = None
) -> Tensor:  # (K, n), float64
    """Compute the surprise −ln P(x_i | all other visible units) of each value in nats.

    A high surprise indicates a value that is inconsistent with the rest of its row. The result is exact for machines
    with at most one hidden layer. For deeper machines, it is computed by TAP, with one solution per value.

    Args:
        machine: An unconditioned machine.
        x: Complete rows, of shape (K, n_visible).
        scheme: Mean-field scheme for machines with two or more hidden layers (default: `TAP()`).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.posterior import conditional_surprise
        >>> conditional_surprise(rbm(Binary(2, field=2.0), Binary(2)), torch.tensor([[1.0, 0.0]]))
        tensor([[0.1269, 2.1262]], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    check_alphabet(x, machine.layers[0])
    if bool(is_nan(x).any()):
        raise ValueError(
            f"x[{int(is_nan(x).any(1).nonzero()[0])}] has missing values; expected complete rows; use impute first"
        )
    double, rows = for_scoring(machine, machine.layers[0].from_data(x))
    units = double.layers[0]
    everything = torch.arange(units.n, device=rows.device)
    first = torch.tensor(units.unit_starts, device=rows.device)  # first component of each unit
    unit_of = torch.searchsorted(first, everything, right=True) - 1
    if len(machine.layers) <= 2:
        return -log_conditionals(double, rows, everything.expand(len(rows), -1))
    pairs = torch.cartesian_prod(torch.arange(len(rows), device=rows.device), first)
    parts, failed = [], 0
    for some in pairs.split(PARTICLES):
        row, unit = some.unbind(1)
        solution = solve(
            clamp(double, rows[row], mask=unit_of != unit_of[unit].unsqueeze(1)), None, scheme, tol=TOLERANCE
        )
        tilt = Tilt(*(torch.as_tensor(z) for z in solution.tilts[0]))
        exponent = rows[row] * tilt.field - 0.5 * tilt.precision * rows[row] ** 2
        log_joint = units.log_prior(rows[row], validate=False) + units.per_unit(exponent)
        surprise = (units.log_partition(tilt) - log_joint).gather(1, unit.unsqueeze(1)).squeeze(1)
        parts.append(surprise.where(solution.converged, torch.nan))
        failed += int((~solution.converged).sum())
    if failed:
        warn(f"{failed} of {len(pairs)} values have no converged solution; their surprise is NaN", PosteriorWarning)
    result = torch.zeros((len(rows), units.n), dtype=torch.float64, device=rows.device)
    result[:, first] = torch.cat(parts).view(len(rows), len(first))
    return result
