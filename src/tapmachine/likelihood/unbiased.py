"""Log-likelihoods without mean-field approximations: exact if enumeration is fast, and annealed otherwise.

The mean weight of annealed importance sampling is an unbiased estimate of Z for every machine, whereas TAP may
overestimate or underestimate ln Z. A TAP log-likelihood is therefore reported together with an unbiased one.
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.data.errors import LikelihoodWarning
from tapmachine.data.rows import spaced
from tapmachine.exact import closed_log_partition
from tapmachine.likelihood.annealing.estimate import COLLAPSED, AnnealedEstimate, ais_log_partition
from tapmachine.likelihood.exact import can_enumerate, exact_log_partition
from tapmachine.likelihood.observed import observed_log_weight
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, in_double, n_units
from tapmachine.machine.conditioning import clamp, hidden_machine
from tapmachine.machine.whitening import whiten
from tapmachine.solver import TAP

TOLERANCE = 0.1  # nats: standard error at which annealing stops
N_RUNS = 100
N_RUNS_OF_ROW = 20  # number of runs per row of a machine with several hidden layers
DRIFT = 1.0  # nats by which estimates of a log-likelihood may differ without a warning
DRIFT_SHARE = 0.02  # limit as a fraction of the log-likelihood, used if it is larger; three standard errors are added


class Effort(NamedTuple):
    """Limits on the computation of an estimate.

    Attributes:
        bits: Binary logarithm of the maximum number of states to enumerate on the smaller side of a machine.
        temperatures: Numbers of temperatures, tried in turn until the standard error is below 0.1 nats.
        n_rows: For machines with several hidden layers, the number of rows whose weights are enumerated or annealed
            (default: all rows). The other rows use TAP's weight, corrected by its mean error on the enumerated or
            annealed rows.
        n_gappy_rows: Number of rows with missing values to anneal (default: all rows). The other rows are not scored.
    """

    bits: int
    temperatures: tuple[int, ...]
    n_rows: int | None = None
    n_gappy_rows: int | None = None


THOROUGH = Effort(16, (300, 1000, 3000, 6000))
CHEAP = Effort(12, (100,), 30, 100)  # used after an epoch of training
CAREFUL = Effort(12, (100, 300, 1000), 30, 100)  # used to select the best epoch


class LogPartition(NamedTuple):
    """Value of ln Z of a machine.

    Attributes:
        value: Value of ln Z in nats, relative to normalized priors.
        error: Standard error; 0 if the value is exact.
        method: Method of computation, `exact` or `annealed`.
    """

    value: float
    error: float
    method: str


@torch.no_grad()
def unbiased_log_partition(
    machine: BoltzmannMachine, data: Tensor | None = None, effort: Effort = THOROUGH, seed: int = 0
) -> LogPartition:
    """Compute ln Z exactly if enumeration is fast, and otherwise by annealing until the standard error is small.

    Args:
        machine: Unconditioned machine.
        data: Rows that determine the initial means of annealing, shape (N, n_visible); see `ais_log_partition`.
        effort: Limits on the computation (default: `THOROUGH`).
        seed: Random seed for annealing (default: 0).

    Raises:
        EstimateError: If Z is infinite.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood.unbiased import unbiased_log_partition
        >>> unbiased_log_partition(rbm(Binary(40), Binary(4))).method
        'exact'
    """
    if closed_log_partition(machine, effort.bits) is not None or can_enumerate(machine, effort.bits):
        return LogPartition(float(exact_log_partition(in_double(machine))), 0.0, "exact")
    whitened = whiten(machine)
    if whitened is not None:  # in whitened coordinates, chains mix well for any scales and correlations of the columns
        data = None if data is None else whitened.rows(data)
        value, error, method = unbiased_log_partition(whitened.machine, data, effort, seed)
        return LogPartition(value + whitened.log_partition_gain, error, method)
    for n_temperatures in effort.temperatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)  # the last standard error is returned to the caller
            estimate = ais_log_partition(machine, n_temperatures, N_RUNS, data=data, seed=seed)
        error = _honest_error(estimate)
        if error < TOLERANCE:
            break
    return LogPartition(float(estimate.log_partition), error, "annealed")


def _honest_error(estimate: AnnealedEstimate) -> float:
    """Return the standard error of an estimate, or the standard deviation of its runs if the weights have collapsed.

    The standard error is meaningless if a few runs carry most of the weight.
    """
    collapsed = float(estimate.effective_sample_size) < COLLAPSED * estimate.n_runs
    return float(estimate.log_weights.std() if collapsed else estimate.standard_error)


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
        weights[gappy] = observed_log_weight(
            double, rows[gappy], missing[gappy], effort.bits, effort.temperatures, seed, effort.n_gappy_rows
        )
    log_partition, error = (weights.new_tensor(value) for value in (partition.value, partition.error))
    return LogLikelihood(weights - log_partition, log_partition, error, n_units(machine))


def _complete_log_weight(machine: BoltzmannMachine, rows: Tensor, effort: Effort, seed: int) -> Tensor:  # (N,)
    return log_weight(machine, rows) if len(machine.layers) <= 2 else _deep_log_weight(machine, rows, effort, seed)


def _deep_log_weight(machine: BoltzmannMachine, rows: Tensor, effort: Effort, seed: int) -> Tensor:  # (N,)
    if effort.n_rows is not None and len(rows) > effort.n_rows:
        by_tap = clamped_log_weight(machine, rows, TAP())
        unbiased = _deep_log_weight(machine, spaced(rows, effort.n_rows), effort, seed)
        return by_tap + (unbiased - spaced(by_tap, effort.n_rows)).nanmean()
    if can_enumerate(machine, effort.bits):
        return exact_log_partition(clamp(machine, rows))
    hidden = hidden_machine(machine, rows)
    for n_temperatures in effort.temperatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)
            estimate = ais_log_partition(hidden, n_temperatures, N_RUNS_OF_ROW, seed=seed)
        # The logarithm of an unbiased average is too low by half its variance.
        if float(0.5 * estimate.standard_error.square().mean()) < TOLERANCE:
            break
    return estimate.log_partition + machine.layers[0].log_prior(rows).sum(-1, dtype=torch.float64)


def has_drifted(gap: float, log_likelihood: float, error: float) -> bool:
    """Return whether two estimates of a log-likelihood differ significantly.

    Args:
        gap: Difference between the estimates in nats.
        log_likelihood: Approximate log-likelihood in nats.
        error: Standard error of the difference in nats.
    """
    return abs(gap) > max(DRIFT, DRIFT_SHARE * abs(log_likelihood)) + 3 * error
