"""Annealing from several bases, of which the best is continued."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.likelihood.annealing.bases import N_STARTS, class_base, independent_base, solution_base
from tapmachine.likelihood.annealing.estimate import COLLAPSED, ENOUGH_WEIGHT, AnnealedEstimate, anneal_until
from tapmachine.likelihood.annealing.paths import Base, path_from
from tapmachine.machine import BoltzmannMachine

TOLERANCE = 0.1  # nats: standard error at which annealing stops
N_RUNS, PILOT = 100, 100  # runs of each estimate of ln Z; temperatures at which all bases are compared
RUNS_PER_COMPONENT = 5  # minimum for a correction of the weights of components after a trial
KEPT_SHARE = 0.2  # share of the weights of components that remains if their weights are corrected after a trial
ONE_SIGMA, MOST_VARIANCE = 0.841, 10.0  # a quantile, and a limit on the variance, of normal log-weights
SIGNIFICANT = 3.0  # standard errors
SURE = 3.0  # nats by which an unbiased estimate of Z exceeds Z with a probability of at most exp(−3)


class Trial(NamedTuple):
    """Estimate of ln Z from one base."""

    base: Base
    estimate: AnnealedEstimate

    @property
    def value(self) -> float:
        """Value of ln Z."""
        return float(self.estimate.log_partition)

    @property
    def error(self) -> float:
        """Standard error of ln Z, or the standard deviation of its runs if the weights have collapsed."""
        return honest_error(self.estimate)

    @property
    def lower_bound(self) -> float:
        """Lower bound on ln Z: an unbiased estimate of Z may be much smaller than Z, but is rarely much larger."""
        return self.value - min(SIGNIFICANT * self.error, SURE)

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g} from {self.base.name}"


def anneal_from_bases(
    machine: BoltzmannMachine,
    data: Tensor | None,
    temperatures: Sequence[int],
    n_runs: int = N_RUNS,
    n_starts: int = N_STARTS,
    with_classes: bool = False,
    seed: int = 0,
) -> tuple[Trial, list[Trial]]:
    """Anneal from independent units, from the machine's solutions and from classes of rows, and continue from the best.

    Args:
        machine: Machine that is not conditioned on rows.
        data: Rows near which annealing starts, if any.
        temperatures: Numbers of temperatures, tried in turn until the standard error is below 0.1 nats.
        n_runs: Number of runs of each estimate (default: 100).
        n_starts: Number of rows, and number of random points, from which the solutions start (default: 100).
        with_classes: Whether to try classes of the rows (default: False).
        seed: Random seed (default: 0).

    Returns:
        The best estimate, and the estimates from all bases with few temperatures.
    """
    bases = [independent_base(machine, data, seed), solution_base(machine, data, seed, n_starts)]
    bases += [class_base(machine, data, seed)] if with_classes and data is not None else []

    def trial(base: Base, temperatures: Sequence[int]) -> Trial:
        def is_enough(estimate: AnnealedEstimate) -> bool:
            return honest_error(estimate) < TOLERANCE

        return Trial(base, anneal_until(is_enough, machine, temperatures, n_runs=n_runs, base=base, seed=seed))

    def pilot(base: Base) -> Trial:
        tried = trial(base, (n_pilot,))
        is_poor = float(tried.estimate.effective_sample_size) < ENOUGH_WEIGHT * n_runs
        can_improve = is_poor and 1 < len(base) <= n_runs / RUNS_PER_COMPONENT
        return trial(_reweighted(tried, machine), (n_pilot,)) if can_improve else tried

    n_pilot = min(PILOT, temperatures[0])
    trials = [pilot(base) for base in bases if base is not None]
    best, more = _best(trials), [n for n in temperatures if n > n_pilot]
    if more and not best.error < TOLERANCE / 2:
        best = _best([trial(best.base, more), *(other for other in trials if other is not best)])
    return best, trials


def _reweighted(trial: Trial, machine: BoltzmannMachine) -> Base:
    """Return the base with the weights that its components have in the machine, according to a trial."""
    estimate, path = trial.estimate, path_from(trial.base, machine)
    weights, before = path.shares(estimate.samples, estimate.log_weights.softmax(0)), path.log_weights().softmax(0)
    after = torch.lerp(weights, before, KEPT_SHARE)
    return replace(trial.base, offsets=trial.base.offsets + (after / before).log())


def _best(trials: list[Trial]) -> Trial:
    """Return the trial with the largest effective sample size among those that have not missed any modes."""
    bound = max(trial.lower_bound for trial in trials)
    complete = [t for t in trials if t.value + SIGNIFICANT * float(t.estimate.standard_error) >= bound]
    return max(complete, key=lambda trial: float(trial.estimate.effective_sample_size))


def honest_error(estimate: AnnealedEstimate) -> float:
    """Return the standard error of an estimate, or the standard deviation of its runs if the weights have collapsed.

    The standard error is meaningless if very few runs carry most of the weight. If a few runs do, it is too small,
    because larger weights are likely but have not occurred. It is therefore at least that of log-normal weights with
    the same upper quantiles.
    """
    effective = float(estimate.effective_sample_size) / estimate.n_runs
    if effective < COLLAPSED:
        return float(estimate.log_weights.std())
    if effective > ENOUGH_WEIGHT / 2:
        return float(estimate.standard_error)
    middle, upper = estimate.log_weights.quantile(estimate.log_weights.new_tensor([0.5, ONE_SIGMA])).tolist()
    log_normal = math.expm1(min((upper - middle) ** 2, MOST_VARIANCE)) / estimate.n_runs
    return max(float(estimate.standard_error), math.sqrt(log_normal))
