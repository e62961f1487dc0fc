"""Log-likelihoods without mean-field approximations: exact if enumeration is fast, and annealed otherwise.

The mean weight of annealed importance sampling is an unbiased estimate of Z for every machine, whereas TAP may
overestimate or underestimate ln Z. A TAP log-likelihood is therefore reported together with an unbiased one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.data.rows import spaced
from tapmachine.exact import closed_log_partition, mixture_of
from tapmachine.likelihood.annealing.bases import class_base, independent_base, solution_base
from tapmachine.likelihood.annealing.estimate import COLLAPSED, AnnealedEstimate, anneal_until
from tapmachine.likelihood.annealing.paths import Base
from tapmachine.likelihood.exact import can_enumerate, exact_log_partition, observed_weight_by_enumeration
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, in_double, n_units
from tapmachine.machine.conditioning import clamp, hidden_machine
from tapmachine.solver import TAP

TOLERANCE = 0.1  # nats: standard error at which annealing stops
N_RUNS, PILOT = 100, 100  # runs of each estimate of ln Z; temperatures at which all bases are compared
SIGNIFICANT = 3.0  # standard errors
SURE = 3.0  # nats by which an unbiased estimate of Z exceeds Z with a probability of at most exp(−3)
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
    """

    bits: int
    temperatures: tuple[int, ...]
    n_rows: int | None = None
    n_gappy_rows: int | None = None
    n_starts: int = 100


THOROUGH = Effort(16, (300, 1000, 3000, 6000))
CHEAP = Effort(12, (100,), 30, 100, 30)  # used after an epoch of training
CAREFUL = Effort(12, (100, 300, 1000), 30, 100, 30)  # used to select the best epoch


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
    bases = [independent_base(machine, data, seed), solution_base(machine, data, seed, effort.n_starts)]
    bases += [] if data is None or effort is CHEAP else [class_base(machine, data, seed)]
    pilot = min(PILOT, effort.temperatures[0])
    trials = [
        _Trial(base, anneal_until(lambda _: True, machine, (pilot,), n_runs=N_RUNS, base=base, seed=seed))
        for base in bases
        if base is not None
    ]
    best = _best(trials)
    temperatures = [n for n in effort.temperatures if n > pilot]
    if temperatures and not best.error < TOLERANCE / 2:
        estimate = anneal_until(
            lambda estimate: _honest_error(estimate) < TOLERANCE,
            machine,
            temperatures,
            n_runs=N_RUNS,
            base=best.base,
            seed=seed,
        )
        best = _best([_Trial(best.base, estimate), *(trial for trial in trials if trial is not best)])
    return _result(machine, best, trials, data)


class _Trial(NamedTuple):
    """Estimate from one base."""

    base: Base
    estimate: AnnealedEstimate

    @property
    def value(self) -> float:
        return float(self.estimate.log_partition)

    @property
    def error(self) -> float:
        return _honest_error(self.estimate)

    @property
    def at_least(self) -> float:
        """Lower bound on ln Z: an unbiased estimate of Z is rarely much larger than Z, but may be much smaller."""
        return self.value - min(SIGNIFICANT * self.error, SURE)

    @property
    def effective(self) -> float:
        return float(self.estimate.effective_sample_size)


def _best(trials: list[_Trial]) -> _Trial:
    """Return the trial with the largest effective sample size among those that have not missed any modes."""
    at_least = max(trial.at_least for trial in trials)
    complete = [t for t in trials if t.value + SIGNIFICANT * float(t.estimate.standard_error) >= at_least]
    return max(complete, key=lambda trial: trial.effective)


def _result(machine: BoltzmannMachine, best: _Trial, trials: list[_Trial], data: Tensor | None) -> LogPartition:
    """Compare the best estimate with those from other bases, and with the weight of the data."""
    value, error, problem = best.value, best.error, ""
    others = [trial for trial in trials if trial.base is not best.base]
    if others and all(t.value + SIGNIFICANT * (t.error + error) < value for t in others):
        by_others = ", ".join(f"{t.value:.4g} ± {t.error:.2g} from {t.base.name}" for t in others)
        problem = (
            f"annealing from {best.base.name} gives ln Z = {value:.4g} ± {error:.2g}, but {by_others}: the largest "
            "value counts, since annealing misses modes, but no other estimate confirms it"
        )
    if not error < TOLERANCE:
        problem = f"the standard error of ln Z is {error:.2g} nats, above {TOLERANCE}" + (problem and f"; {problem}")
    return LogPartition(value, error, "annealed", problem)


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
        if bool(gappy.any()):
            weights[gappy] = observed_log_weight(double, rows[gappy], missing[gappy], effort, seed)
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
