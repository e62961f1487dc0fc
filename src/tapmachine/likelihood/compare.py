"""All estimators of the log-likelihood side by side, and whether they agree."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from tapmachine.beliefs import Solution
from tapmachine.inference import Scheme, solve
from tapmachine.likelihood.annealing import AnnealedEstimate, ais_log_likelihood, ais_log_partition
from tapmachine.likelihood.exact import can_enumerate, exact_log_likelihood
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.likelihood.score import LikelihoodWarning, LogLikelihood, check_rows, in_double
from tapmachine.likelihood.tap import N_STARTS, TOLERANCE, tap_log_likelihood
from tapmachine.machine import BoltzmannMachine

MOST_ROWS = 10_000  # of the data, that are scored
MOST_PSEUDO_ROWS = 1_000  # by pseudo-likelihood, where a row costs as much as hundreds do elsewhere
MOST_DEEP_ROWS = 100  # by annealing on machines with several hidden layers, where every row needs runs of its own
DRIFT_PER_UNIT = 0.02  # nats for each visible unit, by which TAP may differ from annealing without a warning
EXACT_BITS = 20  # of the smaller side of a machine that is small enough to be enumerated in passing

Estimate = Callable[[Tensor], LogLikelihood]


@dataclass(frozen=True)
class ComparisonRow:
    """What one estimator says, in nats; NaN where there is nothing to say.

    Attributes:
        estimator: its name.
        train, train_error, test, test_error: the mean log-likelihood of the data, and its standard error over the rows.
        error: the standard error that all rows share, as of ln Z.
        log_partition: the ln Z that it used.
        seconds: that it took.
    """

    estimator: str
    train: float
    train_error: float
    test: float
    test_error: float
    error: float
    log_partition: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A table of estimates; `print` it.

    Attributes:
        rows: one for each estimator.
        warnings: what was found wrong, as it was warned of.
    """

    rows: tuple[ComparisonRow, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, estimator: str) -> ComparisonRow:
        """The row of an estimator."""
        for row in self.rows:
            if row.estimator == estimator:
                return row
        raise KeyError(f"there is no {estimator!r}; there are {[row.estimator for row in self.rows]}")

    def __str__(self) -> str:
        head = (
            f"{'estimator':<18} {'train':>10} {'±':>7} {'test':>10} {'±':>7} {'error':>8} {'ln Z':>10} {'seconds':>8}"
        )
        lines = [head]
        for row in self.rows:
            cells = [_cell(row.train, 10, 3), _cell(row.train_error, 7, 3), _cell(row.test, 10, 3)]
            cells += [_cell(row.test_error, 7, 3), _cell(row.error, 8, 4), _cell(row.log_partition, 10, 3)]
            lines.append(" ".join([f"{row.estimator:<18}", *cells, f"{row.seconds:8.2f}"]))
        return "\n".join([*lines, *(f"warning: {message}" for message in self.warnings)])


def _cell(value: float, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value != value else f"{value:{width}.{digits}f}"


@torch.no_grad()
def compare_likelihoods(
    machine: BoltzmannMachine,
    train: Tensor,
    test: Tensor | None = None,
    *,
    solutions: Solution | None = None,
    scheme: Scheme | None = None,
    schedule: Tensor | int | None = None,
    n_runs: int = 100,
    n_visible: int = 100,
    seed: int = 0,
    callback: Callable[[str], None] | None = None,
) -> Comparison:
    """The log-likelihood by TAP, annealed importance sampling, pseudo-likelihood and, where possible, exactly.

    Of each set of data up to 10,000 rows are scored, evenly spaced; 1,000 by pseudo-likelihood; and 100 by annealing,
    if the machine has several hidden layers.

    Args:
        machine: any machine that is not conditioned.
        train, test: data, (N, n_visible) each.
        solutions: of the machine, by `solve`; without them it is solved from up to 1,000 rows of `train`.
        scheme: for what is solved here; `TAP()` unless given.
        schedule, n_runs, seed: as for `ais_log_partition`. The means of the base are those of `train`.
        n_visible: how many units the pseudo-likelihood takes.
        callback: called with the name of each estimator before it begins.

    Warns:
        LikelihoodWarning: if TAP and annealing differ by more than their errors and 0.02 nats for each visible unit, or
            forward and reverse runs do; if weights have collapsed; if an estimator found no answer.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, compare_likelihoods, rbm
        >>> table = compare_likelihoods(rbm(Binary(4), Binary(2)), torch.eye(4), schedule=50)
        >>> [(row.estimator, round(row.train, 1)) for row in table.rows]
        [('TAP', -2.8), ('TAP, log-sum-exp', -2.8), ('AIS', -2.8), ('AIS, reverse', -2.8), ('pseudo', -2.8),
         ('exact', -2.8)]
    """
    sets = [_spaced(check_rows(machine, x), MOST_ROWS) for x in (train, test) if x is not None]
    table = _Table(sets, callback or (lambda name: None))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LikelihoodWarning)
        table.add_tap(machine, solutions, scheme)
        table.add_annealing(machine, schedule, n_runs, seed)
        if len(machine.layers) <= 2:
            few = min(n_visible, machine.units()[0].n)
            table.announce("pseudo")
            table.add("pseudo", lambda x: pseudo_log_likelihood(machine, x, few, seed=seed), MOST_PSEUDO_ROWS)
        if can_enumerate(machine, EXACT_BITS):
            table.announce("exact")
            table.add("exact", lambda x: exact_log_likelihood(machine, x))
    messages = [str(found.message) for found in caught if issubclass(found.category, LikelihoodWarning)]
    messages += table.failures + _disagreements(table.rows, machine.units()[0].n)
    for message in messages:
        warnings.warn(message, LikelihoodWarning, stacklevel=3)  # past the decorator
    return Comparison(tuple(table.rows), tuple(messages))


class _Table:
    """Rows as they are made."""

    def __init__(self, sets: list[Tensor], announce: Callable[[str], None]) -> None:
        self.sets, self.announce = sets, announce
        self.rows: list[ComparisonRow] = []
        self.failures: list[str] = []

    def add(self, name: str, estimate: Estimate, most_rows: int = MOST_ROWS, seconds: float = 0.0) -> None:
        """The row of an estimator; one without numbers, if it fails."""
        start = time.perf_counter()
        try:
            found = [estimate(_spaced(x, most_rows)) for x in self.sets]
        except ValueError as error:
            self.fail(name, error)
            return
        self._write(name, found, seconds + time.perf_counter() - start)

    def fail(self, name: str, error: ValueError) -> None:
        self.failures.append(f"{name}: {error}")
        self.rows.append(ComparisonRow(name, nan, nan, nan, nan, nan, nan, 0.0))

    def _write(self, name: str, found: list[LogLikelihood], seconds: float) -> None:
        means = [value for own in found for value in (float(own.mean), float(own.standard_error))]
        train, train_error, test, test_error = [*means, nan, nan][:4]
        error, log_partition = float(found[0].common_error), float(found[0].log_partition)
        self.rows.append(ComparisonRow(name, train, train_error, test, test_error, error, log_partition, seconds))

    def add_tap(self, machine: BoltzmannMachine, solutions: Solution | None, scheme: Scheme | None) -> None:
        """Both of TAP's, which share their solutions."""
        self.announce("TAP")
        start = time.perf_counter()
        try:
            if solutions is None:
                double = in_double(machine)
                solutions = solve(double, check_rows(double, _spaced(self.sets[0], N_STARTS)), scheme, tol=TOLERANCE)
            found = [tap_log_likelihood(machine, x, solutions, scheme=scheme) for x in self.sets]
        except ValueError as error:
            self.fail("TAP", error)
            return
        seconds = time.perf_counter() - start
        self._write("TAP", list(found), seconds)
        self._write("TAP, log-sum-exp", [own.log_sum_exp for own in found], seconds)

    def add_annealing(self, machine: BoltzmannMachine, schedule: Tensor | int | None, n_runs: int, seed: int) -> None:
        """Forward runs, and reverse ones from where they ended."""
        most_rows = MOST_ROWS if len(machine.layers) <= 2 else MOST_DEEP_ROWS
        samples: tuple[Tensor, ...] | None = None
        for name, reverse in (("AIS", False), ("AIS, reverse", True)):
            self.announce(name)
            start = time.perf_counter()
            try:
                estimate = ais_log_partition(
                    machine, schedule, n_runs, data=self.sets[0], reverse=reverse, samples=samples, seed=seed
                )
            except ValueError as error:
                self.fail(name, error)
                return
            samples = samples or estimate.weighted_samples()
            seconds = time.perf_counter() - start
            self.add(name, _annealed(machine, estimate, n_runs, seed), most_rows, seconds)


def _annealed(machine: BoltzmannMachine, estimate: AnnealedEstimate, n_runs: int, seed: int) -> Estimate:
    return lambda x: ais_log_likelihood(machine, x, estimate, n_runs=n_runs, seed=seed)


def _spaced(x: Tensor, most: int) -> Tensor:
    """Rows at even distances, no more than so many."""
    return x[:: -(-len(x) // most)]


def _disagreements(rows: list[ComparisonRow], n_visible: int) -> list[str]:
    """What the table says that a reader must not miss."""
    found = {row.estimator: row for row in rows}
    tap, annealed, reverse = (found.get(name) for name in ("TAP", "AIS", "AIS, reverse"))
    messages = []
    if tap is not None and annealed is not None:
        gap = tap.train - annealed.train
        if abs(gap) > DRIFT_PER_UNIT * n_visible + 3 * annealed.error:
            messages.append(
                f"TAP and AIS have drifted apart: {tap.train:.1f} and {annealed.train:.1f} ± {annealed.error:.1f} nats "
                f"on the training data. TAP's value is {abs(gap):.1f} nats too {'high' if gap > 0 else 'low'} and no "
                "guide here: the couplings have grown beyond its range, as by over-training"
            )
    if annealed is not None and reverse is not None:
        gap = abs(annealed.log_partition - reverse.log_partition)
        error = (annealed.error**2 + reverse.error**2) ** 0.5
        if gap > DRIFT_PER_UNIT * n_visible + 3 * error:
            messages.append(
                f"forward and reverse AIS differ by {gap:.1f} nats in ln Z: the truth lies between them, and the runs "
                "do not mix; use more temperatures"
            )
    return messages
