"""Log-likelihoods of the machine of a run, in the units of its data."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import LikelihoodWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.likelihood import Annealing, LikelihoodComparison, compare_likelihoods
from tapmachine.likelihood.exact import exact_log_partition
from tapmachine.likelihood.report import LikelihoodReport, Sets, likelihood_report
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.unbiased import LogPartition
from tapmachine.machine.checks import in_double, take_gaps
from tapmachine.runs.data import RunData, named
from tapmachine.runs.session import Session
from tapmachine.solver.validity import has_mean_field

Say = Callable[[str], None]


@torch.no_grad()
def evaluate(
    session: Session,
    source: str | None = None,
    exact: bool = False,
    seed: int = 0,
    say: Say = lambda line: None,
    data: RunData[Tensor] | None = None,
) -> LikelihoodReport:
    """Compute the log-likelihood of the training and held-out data of a run, or of other data.

    Independent units, as a baseline, are fitted to the first data set. TAP is included for complete data that are not
    tables.

    Args:
        session: Run directory or machine file, with its machine on the device to compute on.
        source: Data set to use instead of the run's data. Required for machine files.
        exact: Whether to compute ln Z exactly, even if this takes long (default: only if it is fast).
        seed: Random seed for annealing (default: 0).
        say: Callback that receives progress messages (default: messages are ignored).
        data: The data, with NaN for missing values, if they have been read (default: they are read from the source).

    Warns:
        LikelihoodWarning: If ln Z or the TAP estimate is not reliable.
    """
    x, sets = _sets(session, source, say, data)
    machine, gappy = session.machine, any(missing is not None for _, missing in sets.values())
    say("estimating log-likelihoods …")
    partition = LogPartition(float(exact_log_partition(in_double(machine))), 0.0, "exact") if exact else None
    by_tap = not gappy and session.codec.schema is None and has_mean_field(machine)
    first, missing = next(iter(sets.values()))
    complete = first if missing is None else first[~missing.any(1)]
    report = likelihood_report(
        machine, sets, partition, baseline=complete if len(complete) else None, by_tap=by_tap, seed=seed
    )
    for problem in report.problems:
        warn(problem, LikelihoodWarning)

    def in_units_of_data(name: str, score: LogLikelihood) -> LogLikelihood:
        return score.minus(torch.as_tensor(_log_scale(session, spaced(x[name], len(score)))).to(score.values))

    scores, independent = (
        {name: in_units_of_data(name, score) for name, score in own.items()}
        for own in (report.scores, report.independent)
    )
    return replace(report, scores=scores, independent=independent)


def compare(session: Session, source: str | None, annealing: Annealing, say: Say) -> LikelihoodComparison:
    """Compare all estimators of the log-likelihood; see `evaluate` and `compare_likelihoods`.

    Raises:
        ValueError: If values are missing.
    """
    x, sets = _sets(session, source, say)
    for name, (_, missing) in sets.items():
        if missing is not None:
            raise ValueError(f"{name}: has missing values; --ais and --temperatures require complete rows")
    found = compare_likelihoods(
        session.machine, *x.values(), annealing=annealing, callback=lambda name: say(f"{name} …")
    )
    scale = float(np.ravel(_log_scale(session, next(iter(x.values()))[:1]))[0])  # the same for all complete rows
    rows = tuple(replace(row, train=row.train - scale, test=row.test - scale) for row in found.rows)
    return replace(found, rows=rows)


def _sets(
    session: Session, source: str | None, say: Say, data: RunData[Tensor] | None = None
) -> tuple[dict[str, Tensor], Sets]:
    """Read data sets, and return their rows with NaN for missing values, and as states with masks, by name."""
    data = session.data(source, gaps=True) if data is None else data
    for note in () if source is None else data.notes:
        say(note)
    both = {"train": data.train, "held out": data.held_out} if source is None else {source: data.train}
    x = {name: rows.to(session.machine.device) for name, rows in both.items() if rows is not None}
    sets = {}
    for name, rows in x.items():
        with named(name):
            sets[name] = take_gaps(session.machine, rows)
    return x, sets


def _log_scale(session: Session, x: Tensor) -> np.ndarray[Any, Any] | float:
    return session.codec.log_scale(x.double().cpu().numpy())
