"""Commands `tapmachine info` and `tapmachine evaluate`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import (
    AsJson,
    Data,
    Device,
    Quiet,
    Run,
    Seed,
    command,
    open_session,
    speaker,
    summary,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.likelihood.report import LikelihoodReport
    from tapmachine.runs.session import Session


@command("tapmachine info runs/d")
def info(run: Run, as_json: AsJson = False) -> None:
    """Show the data, the machine and the training progress of a run directory or machine file."""
    session = open_session(run)
    records = session.records()
    settings, machine = session.settings.as_json(), session.machine.summary()
    if as_json:
        print(json.dumps({"settings": settings, "machine": machine, "epochs": session.epoch, "records": records}))
        return
    print(f"{run}: {machine}, {session.machine.dtype}".replace("torch.", ""))
    if session.run is None:
        known = {name: value for name, value in session.description.items() if value is not None}
        print("data: " + (", ".join(f"{name} {value}" for name, value in known.items()) or "unknown"))
        return
    print(f"data: {settings['data']}")
    last = summary(records[-1]) if records else "none yet"  # the epoch is that of the last checkpoint
    print(f"epochs: {session.epoch} of {session.settings.all_epochs}; {last}")
    if session.codec.schema is not None:
        print("columns:", *session.codec.schema.describe().splitlines(), sep="\n  ")
    changed = {name: value for name, value in settings.items() if value is not None and name != "data"}
    print("settings: " + ", ".join(f"{name} {value}" for name, value in changed.items()))


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN by None, because JSON has no NaN."""
    return {name: None if value != value else value for name, value in row.items()}


def _of_file(row: dict[str, Any], data: str) -> dict[str, Any]:
    """Convert a row of results to the format of `evaluate` without --ais."""
    shared = {name: row[name] for name in ("log_partition", "log_partition_error", "seconds")}
    scores = {"rows": row["n_rows"], "mean": row["train"], "standard_error": row["train_error"]}
    return {"estimator": row["estimator"], "data": data} | scores | shared


@command("tapmachine evaluate runs/d --ais")
def evaluate(
    run: Run,
    data: Data = None,
    ais: Annotated[
        bool, typer.Option("--ais", help="Compare all estimators, including annealed importance sampling (AIS).")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compute ln Z exactly, for at most 25 binary units on the smaller side.")
    ] = False,
    temperatures: Annotated[
        int | None, typer.Option(help="Number of AIS temperatures (default: adaptive). Implies --ais.")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Estimate the mean log-likelihood of data in nats.

    The log-likelihood is exact for small machines and annealed otherwise.
    The TAP estimate is shown for comparison. The column "per unit" is the
    mean divided by the number of visible and hidden units.
    """
    from tapmachine.accelerator.distributed import leads, pick_device, together
    from tapmachine.likelihood import Annealing, compare_likelihoods
    from tapmachine.machine.checks import take_gaps
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session

    say = speaker(quiet or as_json)
    with together(pick_device(device)) as own:
        session = Session(run, own)
        found = session.data(data, gaps=True)
        for note in () if data is None else found.notes:
            say(note)
        both = {"train": found.train, "held out": found.held_out} if data is None else {data: found.train}
        sets = {name: x.to(session.machine.device) for name, x in both.items() if x is not None}
        states: dict[str, tuple[Tensor, Tensor | None]] = {}
        for name, x in sets.items():
            with named(name):
                states[name] = take_gaps(session.machine, x)
                if states[name][1] is not None and (ais or temperatures is not None):
                    raise ValueError("has missing values; --ais and --temperatures require complete rows")
        if ais or temperatures is not None:
            how = Annealing(temperatures, seed=seed)
            compared = compare_likelihoods(
                session.machine, *sets.values(), annealing=how, callback=lambda name: say(f"{name} …")
            )
            table = compared.table(("train", "test") if data is None else (Path(data).name,))
            rows = [row if data is None else _of_file(row, data) for row in compared.as_dicts()]
        else:
            report = _report(session, sets, states, exact, seed, say)
            rows, table = report.as_dicts(), report.table()
    if leads():
        print(json.dumps([_without_nan(row) for row in rows]) if as_json else table)


def _report(
    session: "Session",
    sets: "Mapping[str, Tensor]",
    states: Mapping[str, "tuple[Tensor, Tensor | None]"],
    exact: bool,
    seed: int,
    say: Callable[[str], None],
) -> "LikelihoodReport":
    """Compute log-likelihoods in the units of the data, and warn if they are not reliable."""
    import torch

    from tapmachine.data.errors import LikelihoodWarning, warn
    from tapmachine.data.rows import spaced
    from tapmachine.likelihood.exact import exact_log_partition
    from tapmachine.likelihood.report import likelihood_report
    from tapmachine.likelihood.unbiased import TOLERANCE, LogPartition
    from tapmachine.machine.checks import in_double

    say("estimating log-likelihoods …")
    gappy = any(missing is not None for _, missing in states.values())
    partition = LogPartition(float(exact_log_partition(in_double(session.machine))), 0.0, "exact") if exact else None
    by_tap = not gappy and session.codec.schema is None
    report = likelihood_report(session.machine, states, partition, by_tap=by_tap, seed=seed)
    problems = [*report.problems]
    if not report.partition.error < TOLERANCE:
        problems.append(
            f"the standard error of ln Z is {report.partition.error:.2g} nats, above {TOLERANCE}; set a larger number "
            "of temperatures with --temperatures"
        )
    for problem in problems:
        warn(problem, LikelihoodWarning)
    for name, score in report.scores.items():
        log_scale = session.codec.log_scale(spaced(sets[name], len(score)).double().cpu().numpy())
        report.scores[name] = score.minus(torch.as_tensor(log_scale).to(score.values))
    if gappy:
        say("some values are missing; showing log-likelihoods of the observed values, without TAP")
    return report
