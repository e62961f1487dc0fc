"""Comparison of all estimators of the log-likelihood, with warnings if they disagree."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import nan

import torch
from torch import Tensor

from tapmachine.beliefs import Solution
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError, LikelihoodWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.exact.gaussian import is_gaussian
from tapmachine.likelihood.annealing.estimate import Annealing, ais_log_likelihood, ais_log_partition
from tapmachine.likelihood.annealing.trials import PILOT, anneal_from_bases
from tapmachine.likelihood.exact import can_enumerate, exact_log_likelihood
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.likelihood.report import MOST_DEEP_ROWS, LikelihoodReport
from tapmachine.likelihood.result import LogLikelihood, disagreement, has_drifted
from tapmachine.likelihood.tap import solve_from_rows, tap_log_likelihood
from tapmachine.likelihood.unbiased import THOROUGH, compared
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, check_rows
from tapmachine.solver import TAP, Scheme

MOST_ROWS = 10_000  # maximum number of rows scored
# For the pseudo-likelihood, for which a row costs as much as hundreds of rows for other estimators.
MOST_PSEUDO_ROWS = 1_000
EXACT_BITS = 20  # machines whose smaller side has at most 2^20 states are enumerated


@dataclass(frozen=True)
class LikelihoodRow:
    """Results of one estimator in nats, with NaN for unavailable values.

    Attributes:
        estimator: Name of the estimator.
        train, train_error, test, test_error: Mean log-likelihoods of the training and test data, and their standard
            errors over the rows.
        n_rows: Number of training rows that were scored.
        log_partition: Value of ln Z used by the estimator.
        log_partition_error: Standard error of ln Z; NaN if unknown, as for TAP.
        seconds: Run time in seconds.
    """

    estimator: str
    train: float
    train_error: float
    test: float
    test_error: float
    n_rows: int
    log_partition: float
    log_partition_error: float
    seconds: float


@dataclass(frozen=True, repr=False)
class LikelihoodComparison:
    """Comparison of the log-likelihoods computed by several estimators.

    Attributes:
        rows: One row per estimator.
        warnings: Warnings that were issued.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, compare_likelihoods, rbm
        >>> from tapmachine.likelihood import Annealing
        >>> table = compare_likelihoods(rbm(Binary(4), Binary(2)), torch.eye(4), annealing=Annealing(10))
        >>> round(table["exact"].train, 2)
        -2.77
    """

    rows: tuple[LikelihoodRow, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, estimator: str) -> LikelihoodRow:
        """Return the row of an estimator."""
        for row in self.rows:
            if row.estimator == estimator:
                return row
        raise KeyError(f"no estimator {estimator!r}; available: {[row.estimator for row in self.rows]}")

    def as_dicts(self) -> list[dict[str, object]]:
        """Return the rows as dictionaries, for example to create a data frame."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        if not self.warnings:
            return self.table()
        return f"{self.table()}\n{len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}: see .warnings"

    def _repr_html_(self) -> str:
        from tapmachine.display.html import card, items, table

        heads = ("estimator", "train", "±", "test", "±", "rows", "ln Z", "±", "seconds")
        body = table(heads, ([getattr(row, field.name) for field in fields(row)] for row in self.rows))
        return card("Log-likelihood, in nats", body, items(self.warnings))

    def table(self, names: Sequence[str] = ("train", "test")) -> str:
        """Format the rows as text.

        The data sets are labeled by `names`. With only one name, only the first data set is shown.
        """
        heads = [head for name in names for head in (name, "±")] + ["rows", "ln Z", "±"]
        fields = ["train", "train_error", "test", "test_error"][: 2 * len(names)]
        fields += ["n_rows", "log_partition", "log_partition_error"]
        widths = [width for name in names for width in (max(10, len(name) + 2), 8)] + [7, 11, 9]
        if any(row.seconds == row.seconds for row in self.rows):
            heads, fields, widths = [*heads, "seconds"], [*fields, "seconds"], [*widths, 9]
        lines = ["estimator".ljust(18) + "".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))]
        for row in self.rows:
            cells = [_cell(getattr(row, field), width) for field, width in zip(fields, widths, strict=True)]
            lines.append(row.estimator.ljust(18) + "".join(cells))
        if any(row.estimator == PSEUDO for row in self.rows):
            lines.append("The pseudo-likelihood does not estimate ln P(x): use it only to compare machines.")
        return "\n".join(lines)


PSEUDO, ANNEALED = "pseudo", "annealed"


def _cell(value: float, width: int) -> str:
    if value != value:
        return "–".rjust(width)
    text = f"{value}" if isinstance(value, int) else f"{value:.3f}" if abs(value) < 1e5 else f"{value:.2e}"
    return " " + text.rjust(width - 1)


@torch.no_grad()
def compare_likelihoods(
    machine: BoltzmannMachine,
    train: Tensor,
    test: Tensor | None = None,
    *,
    solutions: Solution | None = None,
    scheme: Scheme | None = None,
    annealing: Annealing | None = None,
    n_visible: int = 100,
    callback: Callable[[str], None] | None = None,
) -> LikelihoodComparison:
    """Compare log-likelihoods estimated by TAP, annealed importance sampling (AIS) and other methods.

    The exact value is included if the smaller side of the machine has at most 2²⁰ states, or if all units are Gaussian.
    The exact value is the most reliable one, followed by AIS. TAP is the cheapest estimator and is suitable for
    monitoring training as long as it agrees with the other estimators. For machines with at most one hidden layer, the
    pseudo-likelihood is included as well. The pseudo-likelihood is on a different scale and is suitable only for
    comparing machines.

    At most 10,000 evenly spaced rows of each data set are scored. The limit is 1,000 rows for the pseudo-likelihood,
    and 100 rows for AIS and exact values of machines with several hidden layers.

    Args:
        machine: Unconditioned machine.
        train, test: Training data and optional test data, shape (N, n_visible) each.
        solutions: Solutions of the machine returned by `solve` (default: solved from at most 1,000 rows of `train`).
        scheme: Mean-field scheme of the solutions (default: `TAP()`).
        annealing: Options of annealed importance sampling (default: `Annealing()`).
        n_visible: Number of visible units per row used for the pseudo-likelihood (default: 100).
        callback: Function called with the name of each estimator before it starts.

    Warns:
        LikelihoodWarning: If importance weights have collapsed, if an estimator fails, or if TAP or AIS differs
            significantly from the best estimate. A difference is significant if it exceeds three standard errors plus 1
            nat (or 2% of the log-likelihood, if larger).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, compare_likelihoods, rbm
        >>> from tapmachine.likelihood import Annealing
        >>> table = compare_likelihoods(rbm(Binary(4), Binary(2)), torch.eye(4), annealing=Annealing(50))
        >>> [(row.estimator, round(row.train, 1)) for row in table.rows]
        [('TAP', -2.8), ('TAP, log-sum-exp', -2.8), ('annealed', -2.8), ('pseudo', -2.8), ('exact', -2.8)]
    """
    check_machine(machine)
    annealing = annealing or Annealing()
    sets = [spaced(check_rows(machine, x), MOST_ROWS) for x in ([train] if test is None else [train, test])]
    is_deep = len(machine.layers) > 2
    some = [spaced(x, MOST_DEEP_ROWS if is_deep else MOST_ROWS) for x in sets]  # every row needs runs or enumerations
    table = _Table(callback or (lambda name: None))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LikelihoodWarning)
        scheme = scheme or TAP()
        table.add(type(scheme).__name__, _by_tap(machine, sets, solutions, scheme))
        table.add(ANNEALED, _by_annealing(machine, some, annealing))
        if not is_deep:
            few = min(check_count("n_visible", n_visible), machine.layers[0].n)
            table.add(
                PSEUDO, _by_conditionals(machine, [spaced(x, MOST_PSEUDO_ROWS) for x in sets], few, annealing.seed)
            )
        if can_enumerate(machine, EXACT_BITS) or is_gaussian(machine):
            table.add("exact", _exactly(machine, some))
    messages = [str(record.message) for record in caught if issubclass(record.category, LikelihoodWarning)]
    for record in caught:
        if not issubclass(record.category, LikelihoodWarning):
            warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)
    messages += table.failures + _disagreements(table.rows)
    for message in messages:
        warn(message, LikelihoodWarning)
    return LikelihoodComparison(tuple(table.rows), tuple(messages))


_Scores = Iterator[tuple[str, Sequence[LogLikelihood]]]  # names of estimators, and their scores of all data sets


class _Table:
    """Rows of a comparison, with a row of NaN for each estimator that fails."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.announce = announce
        self.rows: list[LikelihoodRow] = []
        self.failures: list[str] = []

    def add(self, name: str, scores: _Scores) -> None:
        """Add the rows of one or more related estimators."""
        self.announce(name)
        start = time.perf_counter()
        try:
            for estimator, of_sets in scores:
                self.rows.append(likelihood_row(estimator, of_sets, time.perf_counter() - start))
        except EstimateError as error:
            self.failures.append(f"{name}: {error}")
            self.rows.append(LikelihoodRow(name, nan, nan, nan, nan, 0, nan, nan, 0.0))


def _by_tap(machine: BoltzmannMachine, sets: list[Tensor], solutions: Solution | None, scheme: Scheme) -> _Scores:
    """Yield the TAP estimates from the mean and the log-sum-exp over the same solutions, named after the scheme."""
    solutions = solve_from_rows(machine, sets[0], scheme) if solutions is None else solutions
    scores = [tap_log_likelihood(machine, x, solutions, scheme=scheme) for x in sets]
    yield type(scheme).__name__, scores
    yield f"{type(scheme).__name__}, log-sum-exp", [score.log_sum_exp for score in scores]


def _by_annealing(machine: BoltzmannMachine, sets: list[Tensor], options: Annealing) -> _Scores:
    """Yield the estimates from annealing, with the best base."""
    betas, n_runs, seed = options.betas(), options.n_runs, options.seed
    temperatures = THOROUGH.temperatures if betas is None else (min(PILOT, len(betas) - 1),)
    best, trials = anneal_from_bases(machine, sets[0], temperatures, n_runs, with_classes=True, seed=seed)
    if betas is not None:
        best = best._replace(estimate=ais_log_partition(machine, betas, n_runs, base=best.base, seed=seed))
    problem = compared(best, trials).problem
    if problem:
        warn(problem, LikelihoodWarning)
    yield ANNEALED, [ais_log_likelihood(machine, x, best.estimate, n_runs=n_runs, seed=seed) for x in sets]


def _by_conditionals(machine: BoltzmannMachine, sets: list[Tensor], n_visible: int, seed: int) -> _Scores:
    """Yield the pseudo-likelihoods."""
    yield PSEUDO, [pseudo_log_likelihood(machine, x, n_visible, seed=seed) for x in sets]


def _exactly(machine: BoltzmannMachine, sets: list[Tensor]) -> _Scores:
    """Yield the exact values, with one enumeration for all data sets."""
    together = exact_log_likelihood(machine, torch.cat(sets))
    parts = together.values.split([len(x) for x in sets])
    yield "exact", [replace(together, values=values) for values in parts]


def comparison_of(report: LikelihoodReport) -> LikelihoodComparison:
    """Return the log-likelihoods of a report as a comparison of estimators."""
    rows = [likelihood_row(report.partition.method, list(report.scores.values()), nan)]
    if report.tap:
        rows.append(likelihood_row("TAP", list(report.tap.values()), nan))
        rows.append(likelihood_row("TAP, log-sum-exp", [tap.log_sum_exp for tap in report.tap.values()], nan))
    if report.independent:
        rows.append(likelihood_row("independent units", list(report.independent.values()), nan))
    return LikelihoodComparison(tuple(rows), report.problems)


def likelihood_row(name: str, scores: Sequence[LogLikelihood], seconds: float) -> LikelihoodRow:
    """Return the row of an estimator with the log-likelihoods of the training data and, if any, the test data."""
    means = [value for score in scores for value in (float(score.mean), float(score.standard_error))]
    log_partition, error = float(scores[0].log_partition), float(scores[0].common_error)
    n_rows = int(scores[0].scored.sum())
    train, train_error, test, test_error = [*means, nan, nan][:4]
    return LikelihoodRow(name, train, train_error, test, test_error, n_rows, log_partition, error, seconds)


def _disagreements(rows: list[LikelihoodRow]) -> list[str]:
    """Return warnings about estimators whose ln Z deviates from the best value in the comparison."""
    estimates = {row.estimator: row for row in rows if row.log_partition == row.log_partition}
    messages = []
    annealed = estimates.get(ANNEALED)
    judge = estimates.get("exact") or annealed
    for row in (rows[0], annealed):
        if judge is None or row is None or row is judge or row.estimator not in estimates:
            continue
        value = judge.train + judge.log_partition - row.log_partition
        error = sum(e for e in (row.log_partition_error, judge.log_partition_error) if e == e)
        advice = f"the couplings are too strong for {row.estimator}; use {judge.estimator} instead"
        summed = estimates.get(f"{row.estimator}, log-sum-exp")
        if row is annealed:
            advice = "the chains miss part of the distribution; use other initial states or more temperatures"
        elif summed is not None and not has_drifted(judge.log_partition - summed.log_partition, judge.train, error):
            off = abs(judge.log_partition - summed.log_partition)
            advice = f"it averages over several solutions; their log-sum-exp is only {off:.2g} nats off"
        name = "AIS" if row is annealed else row.estimator
        message = disagreement(name, value, judge.estimator, judge.train, error, advice)
        messages += [] if message is None else [message]
    return messages
