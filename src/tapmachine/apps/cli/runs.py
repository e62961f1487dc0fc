"""Commands `tapmachine info` and `tapmachine evaluate`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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


@command("tapmachine info runs/d")
def info(run: Run, as_json: AsJson = False) -> None:
    """Show the data, the machine and the training progress of a run directory or machine file."""
    from tapmachine.runs.settings import Settings

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
    last = summary(records) if records else "none yet"  # the epoch is that of the last checkpoint
    is_fitted = bool(records) and records[-1].get("is_fitted")
    print(f"training: {last}" if is_fitted else f"epochs: {session.epoch} of {session.settings.all_epochs}; {last}")
    if session.codec.schema is not None:
        print("columns:", *session.codec.schema.describe().splitlines(), sep="\n  ")
    usual = Settings(session.settings.data).as_json()
    changed = {name: value for name, value in settings.items() if value != usual[name]}
    print("settings: " + (", ".join(f"{name} {value}" for name, value in changed.items()) or "all defaults"))


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN by None, because JSON has no NaN."""
    return {name: None if value != value else value for name, value in row.items()}


def _of_file(row: dict[str, Any], data: str) -> dict[str, Any]:
    """Name the values of a row of results after the file with the data."""
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
    TAP and independent units are shown for comparison.
    """
    from tapmachine.accelerator.distributed import leads, pick_device, together
    from tapmachine.likelihood import Annealing
    from tapmachine.likelihood.compare import comparison_of
    from tapmachine.runs import evaluation
    from tapmachine.runs.session import Session

    say = speaker(quiet or as_json)
    with together(pick_device(device)) as own:
        session = Session(run, own)
        if ais or temperatures is not None:
            found = evaluation.compare(session, data, Annealing(temperatures, seed=seed), say)
        else:
            report = evaluation.evaluate(session, data, exact, seed, say)
            found = comparison_of(report if data is None else replace(report, independent={}))
    if leads() and as_json:
        rows = [row if data is None else _of_file(row, data) for row in found.as_dicts()]
        print(json.dumps([_without_nan(row) for row in rows]))
    elif leads():
        has_test = any(row.test == row.test for row in found.rows)
        print(found.table(("train", "held out")[: 1 + has_test] if data is None else (Path(data).name,)))
