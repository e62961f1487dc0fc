"""Anomaly scores of rows and of single values."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import PosteriorWarning, warn
from tapmachine.likelihood.pseudo import log_conditionals
from tapmachine.likelihood.tap import TOLERANCE
from tapmachine.likelihood.unbiased import LogPartition, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, take_gaps
from tapmachine.machine.conditioning import clamp
from tapmachine.posterior.channels.evidence import check_alphabet, is_nan
from tapmachine.posterior.observations import as_observations
from tapmachine.solver import Scheme, solve

PARTICLES = 4096  # number of particles solved at a time


@torch.no_grad()
def anomaly_score(
    machine: BoltzmannMachine,
    x: Tensor | np.ndarray[Any, Any],
    partition: LogPartition | None = None,
    seed: int = 0,
) -> Tensor:  # (K,), float64
    """Compute the anomaly score −ln P(x) of each row in nats.

    Higher scores indicate more anomalous rows. Missing values are marginalized out, which generally lowers the score of
    a row; compare such rows only with rows in which the same values are missing.

    Scores are exact for machines of tables, for other mixtures, and if the machine can be enumerated quickly. ln Z of
    other machines is estimated by annealed importance sampling, and so are the weights of rows with missing values and
    of all rows of machines with several hidden layers. The scores equal −`RBM.score_samples`.

    Args:
        machine: An unconditioned machine.
        x: Rows, of shape (K, n_visible), with NaN for missing values.
        partition: Result of `unbiased_log_partition` for this machine, to score several sets of rows with the same ln Z
            (default: computed from the complete rows).
        seed: Random seed for annealing (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.posterior import anomaly_score
        >>> machine = rbm(Binary(2, field=2.0), Binary(2))
        >>> anomaly_score(machine, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, torch.nan]]))
        tensor([0.2539, 4.2537, 0.1269], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    units = machine.layers[0]
    check_alphabet(x, units)
    gaps = is_nan(x)
    complete = units.from_data(x[~gaps.any(1)])
    states, missing = take_gaps(machine, x) if bool(gaps.any()) else (complete, None)
    if partition is None:
        partition = unbiased_log_partition(machine, complete if len(complete) else None, seed=seed)
    score = -unbiased_log_likelihood(machine, states, partition, seed=seed, missing=missing).values
    return score.masked_fill(gaps.all(1), 0.0)  # a row without observed values has probability 1


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
    for chunk in pairs.split(PARTICLES):
        row, unit = chunk.unbind(1)
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
