"""Commands `tapmachine info` and `tapmachine evaluate`."""

import json
from collections.abc import Callable
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
    app,
    open_session,
    speaker,
    summary,
    warnings_as_lines,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.runs.session import Session


@app.command(epilog="Example:  tapmachine info runs/d")
def info(run: Run, as_json: AsJson = False) -> None:
    """Show the data, the machine and the training progress of a run directory or machine file."""
    with warnings_as_lines(quiet=False):
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


@app.command(epilog="Example:  tapmachine evaluate runs/d --ais")
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
    import torch

    from tapmachine.accelerator.devices import pick_device
    from tapmachine.accelerator.distributed import leads, together
    from tapmachine.data.errors import LikelihoodWarning, warn
    from tapmachine.data.rows import spaced
    from tapmachine.likelihood import Annealing, compare_likelihoods
    from tapmachine.likelihood.exact import exact_log_partition
    from tapmachine.likelihood.report import likelihood_report
    from tapmachine.likelihood.unbiased import TOLERANCE, LogPartition
    from tapmachine.machine.checks import in_double, take_gaps
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session

    quiet = quiet or not leads()
    say = speaker(quiet or as_json)
    with warnings_as_lines(quiet), together(pick_device(device)) as own:
        session = Session(run, own)
        machine = session.machine
        sets = {name: x.to(machine.device) for name, x in _data_to_score(session, data, say).items()}
        found: dict[str, tuple[Tensor, Tensor | None]] = {}
        for name, x in sets.items():
            with named(name):
                found[name] = take_gaps(machine, x)
                if found[name][1] is not None and (ais or temperatures is not None):
                    raise ValueError("has missing values; --ais and --temperatures require complete rows")
        if ais or temperatures is not None:
            table = compare_likelihoods(
                machine,
                *sets.values(),
                annealing=Annealing(temperatures, seed=seed),
                callback=lambda name: say(f"{name} …"),
            )
            if leads():
                names = ("train", "test") if data is None else (Path(data).name,)
                shown = [row if data is None else _of_file(row, data) for row in table.as_dicts()]
                print(json.dumps([_without_nan(row) for row in shown]) if as_json else table.table(names))
            return
        say("estimating log-likelihoods …")
        gappy = any(missing is not None for _, missing in found.values())
        partition = LogPartition(float(exact_log_partition(in_double(machine))), 0.0, "exact") if exact else None
        by_tap = not gappy and session.codec.schema is None
        report = likelihood_report(machine, found, partition, by_tap=by_tap, seed=seed)
        if not report.partition.error < TOLERANCE:
            warn(
                f"the standard error of ln Z is {report.partition.error:.2g} nats, above {TOLERANCE}; set a larger "
                "number of temperatures with --temperatures",
                LikelihoodWarning,
            )
        for problem in report.problems:
            warn(problem, LikelihoodWarning)
        for name, score in report.scores.items():
            log_scale = session.codec.log_scale(spaced(sets[name], len(score)).double().cpu().numpy())
            report.scores[name] = score.minus(torch.as_tensor(log_scale).to(score.values))
        if gappy:
            say("some values are missing; showing log-likelihoods of the observed values, without TAP")
        rows = report.as_dicts()
    if not leads():
        return
    if as_json:
        print(json.dumps([_without_nan(row) for row in rows]))
        return
    print(
        f"{'estimator':20}{'data':12}{'rows':>8}{'nats':>12}{'±':>10}{'± of ln Z':>11}{'per unit':>12}{'solutions':>11}"
    )
    for row in rows:
        error = row.get("log_partition_error")
        common = "–" if error is None else f"{error:.3f}"
        numbers = f"{row['rows']:8}{row['mean']:12.3f}{row['standard_error']:10.3f}{common:>11}{row['per_unit']:12.4f}"
        print(f"{row['estimator']:20}{Path(row['data']).name[:11]:12}{numbers}{row.get('n_solutions', ''):>11}")
    print("per unit: the mean divided by the number of visible and hidden units")


def _data_to_score(session: "Session", data: str | None, say: Callable[[str], None]) -> dict[str, "Tensor"]:
    found = session.data(data, gaps=True)
    if data is not None:
        for note in found.notes:
            say(note)
        return {data: found.train}
    return {"train": found.train} | ({} if found.held_out is None else {"held out": found.held_out})
