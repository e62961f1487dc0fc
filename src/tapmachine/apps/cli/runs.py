"""Commands `tapmachine info` and `tapmachine evaluate`."""

import json
from collections.abc import Callable
from dataclasses import replace
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

    from tapmachine.machine import BoltzmannMachine
    from tapmachine.runs.session import Session
    from tapmachine.tables.schema import Schema


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
    from tapmachine.accelerator.devices import pick_device
    from tapmachine.accelerator.distributed import leads, together
    from tapmachine.likelihood import compare_likelihoods
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session
    from tapmachine.training.gaps import take_gaps

    quiet = quiet or not leads()
    say = speaker(quiet or as_json)
    with warnings_as_lines(quiet), together(pick_device(device)) as own:
        session = Session(run, own)
        machine = session.machine
        sets = {name: x.to(machine.device) for name, x in _data_to_score(session, data, say).items()}
        complete: dict[str, Tensor] = {}
        missing: dict[str, Tensor | None] = {}
        for name, x in sets.items():
            with named(name):
                complete[name], missing[name] = take_gaps(machine, x)
                if missing[name] is not None and (ais or temperatures is not None):
                    raise ValueError("has missing values; --ais and --temperatures require complete rows")
        if ais or temperatures is not None:
            table = compare_likelihoods(
                machine, *sets.values(), schedule=temperatures, seed=seed, callback=lambda name: say(f"{name} …")
            )
            if leads():
                names = ("train", "test") if data is None else (Path(data).name,)
                shown = [row if data is None else _of_file(row, data) for row in table.as_dicts()]
                print(json.dumps([_without_nan(row) for row in shown]) if as_json else table.table(names))
            return
        rows = _scores(machine, complete, missing, exact, seed, say, session.codec.schema)
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


def _scores(
    machine: "BoltzmannMachine",
    sets: dict[str, "Tensor"],
    missing: dict[str, "Tensor | None"],
    exact: bool,
    seed: int,
    say: Callable[[str], None],
    schema: "Schema | None" = None,
) -> list[dict[str, Any]]:
    """Compute exact or annealed log-likelihoods and TAP log-likelihoods, with one ln Z per method for all data.

    For a table with a schema, log-likelihoods are in the units of the data. For rows with missing values, they are
    log-likelihoods of the observed values. In both cases, TAP log-likelihoods are omitted.
    """
    import torch

    from tapmachine.data.errors import EstimateError, LikelihoodWarning, warn
    from tapmachine.data.rows import spaced
    from tapmachine.likelihood import LogLikelihood, tap_log_likelihood
    from tapmachine.likelihood.compare import MOST_DEEP_ROWS
    from tapmachine.likelihood.exact import exact_log_partition
    from tapmachine.likelihood.tap import N_STARTS, solve_from_rows
    from tapmachine.likelihood.unbiased import (
        TOLERANCE,
        LogPartition,
        has_drifted,
        unbiased_log_likelihood,
        unbiased_log_partition,
    )
    from tapmachine.machine.checks import in_double

    first = next(iter(sets.values()))
    say("estimating ln Z …")
    if exact:
        partition = LogPartition(float(exact_log_partition(in_double(machine))), 0.0, "exact")
    else:
        partition = unbiased_log_partition(machine, spaced(first, N_STARTS), seed=seed)
    if not partition.error < TOLERANCE:
        warn(
            f"the standard error of ln Z is {partition.error:.2g} nats, above {TOLERANCE}; set a larger number of "
            "temperatures with --temperatures",
            LikelihoodWarning,
        )
    rows: list[dict[str, Any]] = []

    def add(estimator: str, name: str, score: LogLikelihood, **others: float) -> None:
        values = {"mean": score.mean, "standard_error": score.standard_error, "per_unit": score.per_unit}
        row = {"estimator": estimator, "data": name, "rows": len(score)}
        rows.append(row | {key: float(z) for key, z in values.items()} | others)

    few = max(map(len, sets.values())) if len(machine.layers) <= 2 else MOST_DEEP_ROWS  # annealed row by row
    for name, x in sets.items():
        gaps = missing[name]
        gaps = None if gaps is None else spaced(gaps, few)
        score = unbiased_log_likelihood(machine, spaced(x, few), partition, seed=seed, missing=gaps)
        if schema is not None:
            encoded = spaced(x, few) if gaps is None else spaced(x, few).masked_fill(gaps, float("nan"))
            log_scale = torch.from_numpy(schema.log_scale(encoded.double().cpu().numpy()))
            score = replace(score, values=score.values - log_scale.to(score.values))
        add(partition.method, name, score, log_partition_error=partition.error)
    if any(gaps is not None for gaps in missing.values()):
        say("some values are missing; showing log-likelihoods of the observed values, without TAP")
        return rows
    if schema is not None:
        return rows
    say("computing TAP solutions …")
    try:
        solutions = solve_from_rows(machine, first)
        by_tap = {name: tap_log_likelihood(machine, x, solutions) for name, x in sets.items()}
    except EstimateError as error:
        warn(f"the TAP log-likelihood is not available: {error}", LikelihoodWarning)
        return rows
    for name, tap in by_tap.items():
        add("TAP, average", name, tap, n_solutions=tap.n_unique)
        add("TAP, log-sum-exp", name, tap.log_sum_exp, n_solutions=tap.n_unique)
    gap = float(next(iter(by_tap.values())).log_partition) - partition.value
    if has_drifted(gap, rows[0]["mean"], partition.error):
        warn(
            f"the TAP log-likelihood is {abs(gap):.1f} nats too {'low' if gap > 0 else 'high'}, so TAP is not reliable "
            f"for this machine; use the {partition.method} log-likelihood",
            LikelihoodWarning,
        )
    return rows
