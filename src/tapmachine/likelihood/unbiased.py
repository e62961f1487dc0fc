"""Log-likelihoods without mean-field approximations: exact if enumeration is fast, and annealed otherwise.

The mean weight of annealed importance sampling is an unbiased estimate of Z for every machine, whereas TAP may
overestimate or underestimate ln Z. A TAP log-likelihood is therefore reported together with an unbiased one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.data.errors import LikelihoodWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.exact import closed_log_partition, mixture_of
from tapmachine.likelihood.annealing.estimate import anneal_until
from tapmachine.likelihood.annealing.trials import N_RUNS, SIGNIFICANT, TOLERANCE, Trial, anneal_from_bases
from tapmachine.likelihood.exact import can_enumerate, exact_log_partition, observed_weight_by_enumeration
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, in_double, n_units
from tapmachine.machine.conditioning import clamp, hidden_machine
from tapmachine.solver import TAP

N_RUNS_OF_ROW, FEWEST_TEMPERATURES = 20, 20  # runs per row, and the first number of temperatures to try


class Effort(NamedTuple):
    """Limits on the computation of an estimate.

    Attributes:
        bits: Binary logarithm of the maximum number of states to enumerate on the smaller side of a machine.
        temperatures: Numbers of temperatures, tried in turn until the standard error is below 0.1 nats.
        n_rows: For machines with several hidden layers, the number of rows whose weights are enumerated or annealed
            (default: all rows). The other rows use TAP's weight, corrected by its mean error on the enumerated or
            annealed rows.
        n_gappy_rows: Number of rows with missing values to anneal (default: all rows). The other rows are not scored.
        n_starts: Number of rows, and number of random points, from which the solutions of the base start.
        in_training: Whether training waits for the estimate. If so, classes of rows are not used as a base, and no
            warnings are issued.
    """

    bits: int
    temperatures: tuple[int, ...]
    n_rows: int | None = None
    n_gappy_rows: int | None = None
    n_starts: int = 100
    in_training: bool = False


THOROUGH = Effort(16, (300, 1000, 3000, 6000))
CHEAP = Effort(12, (100,), 30, 100, 30, True)  # used after an epoch of training
CAREFUL = Effort(12, (100, 300, 1000), 30, 100, 30, True)  # used to select the best epoch


class LogPartition(NamedTuple):
    """Value of ln Z of a machine.

    Attributes:
        value: Value of ln Z in nats, relative to normalized priors.
        error: Standard error; 0 if the value is exact.
        method: Method of computation, `exact` or `annealed`.
        problem: Reason why the value may be wrong by more than its error, if any.
    """

    value: float
    error: float
    method: str
    problem: str = ""


@torch.no_grad()
def unbiased_log_partition(
    machine: BoltzmannMachine, data: Tensor | None = None, effort: Effort = THOROUGH, seed: int = 0
) -> LogPartition:
    """Compute ln Z exactly if enumeration is fast, and otherwise by annealing until the standard error is small.

    Args:
        machine: Unconditioned machine.
        data: Rows near which annealing starts, shape (N, n_visible).
        effort: Limits on the computation (default: `THOROUGH`).
        seed: Random seed for annealing (default: 0).

    Raises:
        EstimateError: If Z is infinite.

    Warns:
        LikelihoodWarning: If the standard error remains above 0.1 nats, or if no other base confirms the estimate.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood.unbiased import unbiased_log_partition
        >>> unbiased_log_partition(rbm(Binary(40), Binary(4))).method
        'exact'
    """
    if closed_log_partition(machine, effort.bits) is not None or can_enumerate(machine, effort.bits):
        return LogPartition(float(exact_log_partition(in_double(machine))), 0.0, "exact")
    with_classes = data is not None and not effort.in_training
    best, trials = anneal_from_bases(machine, data, effort.temperatures, N_RUNS, effort.n_starts, with_classes, seed)
    partition = compared(best, trials)
    weight = None if data is None or len(machine.layers) > 2 else _log_weight_of_distinct(*for_scoring(machine, data))
    if weight is not None and weight > partition.value:
        if weight > partition.value + SIGNIFICANT * partition.error:
            problem = f"annealing gives ln Z = {partition.value:.4g}, but the rows alone have a weight of {weight:.4g}"
            partition = partition._replace(error=weight - partition.value + partition.error, problem=problem)
        partition = partition._replace(value=weight)
    if partition.problem and not effort.in_training:
        warn(f"{partition.problem}. Log-likelihoods may be too high", LikelihoodWarning)
    return partition


def compared(best: Trial, trials: list[Trial]) -> LogPartition:
    """Compare the best estimate with those from other bases."""
    others, problems = [trial for trial in trials if trial.base is not best.base], []
    if not best.error < TOLERANCE:
        problems.append(f"the standard error of ln Z is {best.error:.2g} nats, above {TOLERANCE}")
    if others and all(other.value + SIGNIFICANT * (other.error + best.error) < best.value for other in others):
        problems.append(
            f"annealing gives ln Z = {best} and {', '.join(map(str, others))}; the largest value is used, because "
            "annealing misses modes, but no other estimate confirms it"
        )
    return LogPartition(best.value, best.error, "annealed", "; ".join(problems))


def _log_weight_of_distinct(
    machine: BoltzmannMachine, rows: Tensor, weights: Tensor | None = None
) -> float | None:  # (N, *state_shape), (N,)
    """Return the logarithm of the total weight of distinct rows, which Z exceeds, or None for continuous units.

    Args:
        machine: Machine in float64.
        rows: States of the visible units.
        weights: Log-weights of the rows (default: computed for a machine with at most one hidden layer).
    """
    if not all(units.support.is_countable for units in machine.layers[0].parts):
        return None
    _, index = rows.flatten(1).unique(dim=0, return_inverse=True)
    weights = log_weight(machine, rows) if weights is None else weights
    first = torch.full((int(index.max()) + 1,), -torch.inf, dtype=weights.dtype, device=weights.device)
    return float(first.scatter_reduce(0, index, weights, "amax").logsumexp(0))


@torch.no_grad()
def unbiased_log_likelihood(
    machine: BoltzmannMachine,
    x: Tensor,
    partition: LogPartition,
    effort: Effort = THOROUGH,
    seed: int = 0,
    missing: Tensor | None = None,
) -> LogLikelihood:
    """Compute ln P(x) of each row, with ln Z from `unbiased_log_partition`.

    With at most one hidden layer, the weight of a row is exact. With several hidden layers, the weight of each row is
    computed separately, by enumeration or annealing. If `effort` limits the number of enumerated or annealed rows, only
    the mean over all rows is unbiased. With a mask of `missing` units, shape (N, n), the result is ln P(x_obs) of the
    observed values.
    """
    double, rows = for_scoring(machine, x)
    if missing is None:
        weights = _complete_log_weight(double, rows, effort, seed)
    else:
        weights, gappy = torch.full_like(rows.flatten(1)[:, 0], torch.nan), missing.any(1)
        if not bool(gappy.all()):
            weights[~gappy] = _complete_log_weight(double, rows[~gappy], effort, seed)
        if bool(gappy.any()):
            weights[gappy] = observed_log_weight(double, rows[gappy], missing[gappy], effort, seed)
    if missing is None and partition.error > 0:
        least = _log_weight_of_distinct(double, rows, weights)
        if least is not None and least > partition.value:
            if least > partition.value + SIGNIFICANT * partition.error:
                warn(
                    f"ln Z is {partition.value:.4g} ± {partition.error:.2g}, but the distinct rows alone have a weight "
                    f"of {least:.4g}, so that their probabilities would exceed 1; this value is used instead",
                    LikelihoodWarning,
                )
                partition = partition._replace(error=least - partition.value + partition.error)
            partition = partition._replace(value=least)
    log_partition, error = (weights.new_tensor(value) for value in (partition.value, partition.error))
    return LogLikelihood(weights - log_partition, log_partition, error, n_units(machine))


def _complete_log_weight(machine: BoltzmannMachine, rows: Tensor, effort: Effort, seed: int) -> Tensor:  # (N,)
    if len(machine.layers) <= 2:
        return log_weight(machine, rows)
    if effort.n_rows is not None and len(rows) > effort.n_rows:
        by_tap = clamped_log_weight(machine, rows, TAP())
        unbiased = _complete_log_weight(machine, spaced(rows, effort.n_rows), effort, seed)
        return by_tap + (unbiased - spaced(by_tap, effort.n_rows)).nanmean()
    if can_enumerate(machine, effort.bits):
        return exact_log_partition(clamp(machine, rows))
    of_hidden = _annealed(hidden_machine(machine, rows), effort, seed)
    return of_hidden + machine.layers[0].log_prior(rows).sum(-1, dtype=torch.float64)


@torch.no_grad()
def observed_log_weight(
    machine: BoltzmannMachine, x: Tensor, missing: Tensor, effort: Effort = THOROUGH, seed: int = 0
) -> Tensor:  # (N,), float64
    """Log-weight ln P(x_obs) + ln Z of the observed values of each row, shape (N,), in float64.

    Missing units are summed over like hidden units. The result is exact for mixtures, such as the default machines for
    tables, and if the hidden or the visible units have few states. For other machines, the log-weight of each row is
    estimated by annealed importance sampling.

    Args:
        machine: Unconditioned machine in float64.
        x: States of the visible layer, shape (N, *state_shape). States of missing units are ignored.
        missing: Mask of the missing units, shape (N, n).
        effort: Limits on the computation (default: `THOROUGH`). If it limits the number of annealed rows, evenly spaced
            rows are annealed, and the result is NaN for other rows.
        seed: Random seed for annealing (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood.unbiased import observed_log_weight
        >>> machine = rbm(Binary(2, field=2.0), Binary(1), weights=torch.zeros(2, 1)).double()
        >>> observed_log_weight(machine, torch.ones(1, 2).double(), torch.tensor([[False, True]]))
        tensor([-0.1269], dtype=torch.float64)
    """
    mixture = mixture_of(machine, bits=0)
    if mixture is not None:
        return mixture.log_weight(x.masked_fill(missing, torch.nan))
    by_enumeration = observed_weight_by_enumeration(machine, x, missing, effort.bits)
    if by_enumeration is not None:
        return by_enumeration
    most = effort.n_gappy_rows
    if most is not None and len(x) > most:
        chosen = torch.arange(0, len(x), -(-len(x) // most), device=x.device)
        some = observed_log_weight(machine, x[chosen], missing[chosen], effort, seed)
        return some.new_full((len(x),), torch.nan).index_copy_(0, chosen, some)
    return _annealed(clamp(machine, x, mask=~missing, validate=False), effort, seed)


def _annealed(machine: BoltzmannMachine, effort: Effort, seed: int) -> Tensor:  # (rows,)
    """Estimate ln Z for each row on which a machine is conditioned.

    The logarithm of an unbiased average is too low by half its variance, which has to be small on average.
    """
    return anneal_until(
        lambda estimate: float(0.5 * estimate.standard_error.square().mean()) < TOLERANCE,
        machine,
        sorted({FEWEST_TEMPERATURES, *effort.temperatures}),
        n_runs=N_RUNS_OF_ROW,
        seed=seed,
    ).log_partition
