"""Report of the most reliable log-likelihoods of several data sets, with those of TAP and of independent units."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.data.errors import EstimateError
from tapmachine.data.rows import Rows, spaced
from tapmachine.likelihood.result import LogLikelihood, disagreement
from tapmachine.likelihood.tap import N_STARTS, TAPLogLikelihood, solve_from_rows, tap_log_likelihood
from tapmachine.likelihood.unbiased import (
    THOROUGH,
    Effort,
    LogPartition,
    unbiased_log_likelihood,
    unbiased_log_partition,
)
from tapmachine.machine import BoltzmannMachine

MOST_DEEP_ROWS = 100  # maximum number of rows of machines with several hidden layers, in which rows are annealed

Sets = Mapping[str, tuple[Tensor, Tensor | None]]  # by name: visible states and the mask of missing units, if any


@dataclass(frozen=True, eq=False)
class LikelihoodReport:
    """Log-likelihoods of several data sets by name. The first data set is the training data.

    Attributes:
        partition: Value of ln Z of the exact or annealed log-likelihoods.
        scores: Exact or annealed log-likelihoods.
        independent: Log-likelihoods of independent units fitted to the training data, if requested.
        tap: TAP log-likelihoods, if requested and available.
        problems: Reasons why TAP log-likelihoods are not available or not reliable.
    """

    partition: LogPartition
    scores: dict[str, LogLikelihood]
    independent: dict[str, LogLikelihood]
    tap: dict[str, TAPLogLikelihood]
    problems: tuple[str, ...]

    def gain(self) -> tuple[float, float]:
        """Return the gain of the training data over independent units per row, and its standard error."""
        first = next(iter(self.scores))
        gains = self.scores[first].values - self.independent[first].values
        return float(gains.mean()), (float(gains.var(correction=0)) / len(gains) + self.partition.error**2) ** 0.5

    def gap(self) -> tuple[float, float]:
        """Return the log-likelihood of the training data minus that of the second data set, and its standard error."""
        values = [score.values for score in list(self.scores.values())[:2]]
        error = sum(float(part.var(correction=0)) / len(part) for part in values) ** 0.5
        return float(values[0].mean() - values[1].mean()), error


@torch.no_grad()
def likelihood_report(
    machine: BoltzmannMachine,
    sets: Sets,
    partition: LogPartition | None = None,
    effort: Effort = THOROUGH,
    *,
    baseline: Tensor | None = None,
    by_tap: bool = False,
    seed: int = 0,
) -> LikelihoodReport:
    """Compute the log-likelihoods of several data sets with the same ln Z.

    At most 100 evenly spaced rows of each data set are scored for machines with several hidden layers.

    Args:
        machine: Unconditioned machine.
        sets: Data sets by name, as visible states and a mask of missing units; see `take_gaps`.
        partition: Value of ln Z (default: computed from the complete rows of the first data set).
        effort: Limits on the computation (default: `THOROUGH`).
        baseline: Rows to which independent units are fitted (default: no independent units).
        by_tap: Whether to compute TAP log-likelihoods as well (default: False). They require complete rows.
        seed: Random seed for annealing (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood.report import likelihood_report
        >>> report = likelihood_report(rbm(Binary(4), Binary(2)), {"train": (torch.eye(4), None)})
        >>> report.scores["train"]
        LogLikelihood(-2.7724 ± 0.0005 nats over 4 rows)
    """
    first, missing = next(iter(sets.values()))
    if partition is None:
        complete = first if missing is None else first[~missing.any(1)]
        data = spaced(complete, N_STARTS) if len(complete) else None
        partition = unbiased_log_partition(machine, data, effort, seed)
    most = max(len(x) for x, _ in sets.values()) if len(machine.layers) <= 2 or effort.n_rows else MOST_DEEP_ROWS
    some = {name: (spaced(x, most), None if gaps is None else spaced(gaps, most)) for name, (x, gaps) in sets.items()}
    scores = {
        name: unbiased_log_likelihood(machine, x, partition, effort, seed, gaps) for name, (x, gaps) in some.items()
    }
    independent: dict[str, LogLikelihood] = {}
    if baseline is not None:
        alone = fit_visible_units(machine, baseline)
        for name, (x, gaps) in some.items():
            values = independent_log_likelihood(alone, x, gaps)
            none = values.new_tensor(torch.nan)
            independent[name] = LogLikelihood(values, none, none, machine.layers[0].n)
    tap: dict[str, TAPLogLikelihood] = {}
    problems = []
    if by_tap:
        try:
            solutions = solve_from_rows(machine, first)
            tap = {name: tap_log_likelihood(machine, x, solutions) for name, (x, _) in sets.items()}
            best = float(next(iter(scores.values())).mean)
            by_mean = best + partition.value - float(next(iter(tap.values())).log_partition)
            drift = disagreement("TAP", by_mean, partition.method, best, partition.error)
            problems += [] if drift is None else [drift]
        except EstimateError as error:
            problems.append(f"the TAP log-likelihood is not available: {error}")
    return LikelihoodReport(partition, scores, independent, tap, tuple(problems))


def fit_visible_units(
    machine: BoltzmannMachine, data: Rows, weights: Tensor | None = None
) -> BoltzmannMachine:  # (N, *state_shape), (N,)
    """Return a copy of a machine, with the visible units fitted to the data as independent units."""
    fitted = deepcopy(machine)
    fitted.layers[0].fit_to(data, weights)  # type: ignore[arg-type]
    return fitted


def independent_log_likelihood(
    machine: BoltzmannMachine, rows: Tensor, missing: Tensor | None = None
) -> Tensor:  # (N, *state_shape), (N, n) -> (N,), float64
    """Log-likelihood of each row under independent visible units, shape (N,), in float64.

    Missing units do not contribute.
    """
    values = machine.layers[0].log_prior(rows, validate=False)
    values = values if missing is None else values.masked_fill(missing, 0.0)
    return values.sum(-1, dtype=torch.float64)
