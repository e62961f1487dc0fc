"""Command `tapmachine score`, which scores the surprise of rows and columns."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.arrays import SUFFIXES, check_targets, save_array, save_columns
from tapmachine.apps.cli.common import Device, Quiet, Run, app, speaker, warnings_as_lines
from tapmachine.apps.cli.tables import ROWS_AT_A_TIME, TABLES, exact_posterior, print_columns

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.beliefs import Solution
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.runs.session import Session
    from tapmachine.tables.codec import EncodedData
    from tapmachine.tables.schema import Schema


@app.command(epilog="Example:  tapmachine score runs/d new.npy --out scores.csv")
def score(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows to score. NaN marks missing values.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file: .csv, .tsv or .parquet (default: standard output).")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of most surprising columns to list per row.")] = 3,
    units: Annotated[
        Path | None,
        typer.Option(help="Output file for the surprise of each value: .npy, .csv, .tsv or .parquet."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score rows by their surprise −ln P in nats, computed exactly for tables and by TAP otherwise.

    If the columns have names, the most surprising columns of each row are
    listed. The surprise of a column is conditional on the other columns. For
    numbers, it is computed in units of the column's standard deviation.
    """
    import numpy as np
    import torch

    from tapmachine.accelerator.devices import pick_device
    from tapmachine.data.columns import RawColumn
    from tapmachine.data.lazy_rows import LazyRows
    from tapmachine.data.text import TextLayout
    from tapmachine.exact import mixture_of
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session

    check_targets((out, TABLES), (units, SUFFIXES))
    session, say = Session(run, pick_device(device)), speaker(quiet)
    machine = session.machine
    found, parts = session.read(data)
    for note in found.notes:
        say(note)
    names = _names(found)
    with warnings_as_lines(quiet), named(data):
        is_table = mixture_of(machine) is not None
        solutions = None
        if units is not None and not is_table and not isinstance(found.rows, LazyRows) and np.isnan(found.rows).any():
            raise ValueError("has missing values; --units requires complete rows, or a machine trained on a table")
        if not is_table:
            say("computing TAP solutions …")
            solutions = _free_solutions(session, say)
        results = [
            _scores(machine, part, found.schema, solutions, is_table, units is not None, bool(names) and top > 0)
            for part in _small(parts, machine)
        ]
    scores = torch.cat([nats for nats, _, _ in results])
    columns = [
        RawColumn("row", "int", np.arange(len(scores), dtype=np.float64), "int64"),
        RawColumn("nats", "float", np.array([float(f"{value:.6g}") for value in scores.tolist()]), "float64"),
    ]
    if names and top and results[0][2] is not None:
        blame = torch.cat([own for _, _, own in results if own is not None]).cpu().numpy()
        columns.append(RawColumn.of("columns", [_most_surprising(row, names, top) for row in blame], "text"))
    if out is None:
        print_columns(columns, None)
    else:
        save_columns(out, columns, TextLayout())
    if units is not None:
        surprise = torch.cat([own for _, own, _ in results if own is not None])
        save_array(units, surprise, found.layout)
    if not quiet and out is not None:
        worst = int(scores.nan_to_num(-torch.inf).argmax())
        average = f"{scores.nanmean():.4g} nats on average, highest for row {worst} ({scores[worst]:.4g})"
        print(f"{out}: {len(scores)} rows, {average}")


def _free_solutions(session: "Session", say: Callable[[str], None]) -> "Solution | None":
    """Compute the TAP solutions of the machine from the run's data. Returns None if the data are not available."""
    from tapmachine.likelihood.tap import solve_from_rows

    try:
        with warnings_as_lines(quiet=False):
            rows = session.training_data().train
    except ValueError as error:
        say(f"tapmachine: warning: {error}; ln Z is estimated from the scored rows instead")
        return None
    return solve_from_rows(session.machine, rows.to(session.machine.device))


def _names(found: "EncodedData") -> tuple[str, ...]:
    """Return the column names, or an empty tuple if the columns have no names."""
    if found.schema is not None:
        return found.schema.names
    return () if found.layout is None else found.layout.column_names() or ()


def _small(parts: "Iterator[Tensor]", machine: "BoltzmannMachine") -> "Iterator[Tensor]":
    for part in parts:
        for some in part.split(ROWS_AT_A_TIME):
            yield some.to(machine.device)


def _scores(
    machine: "BoltzmannMachine",
    x: "Tensor",
    schema: "Schema | None",
    solutions: "Solution | None",
    is_table: bool,
    all_units: bool,
    blames: bool,
) -> "tuple[Tensor, Tensor | None, Tensor | None]":
    """Compute the surprise of rows and of single values.

    Returns:
        The surprise −ln P of each row and the surprise of each value, both in the units of the data, and the surprise
        of each value in standardized units. The last two are None if they are not available.
    """
    import torch

    from tapmachine.posterior import anomaly_score, conditional_surprise

    if is_table:
        posterior = exact_posterior(machine, x)
        nats, cells = posterior.row_surprise(), posterior.cell_surprise()
        nothing = torch.full_like(posterior.x[:1], torch.nan)
        deviation = exact_posterior(machine, nothing).moments.variance[0].sqrt()
        real = posterior.mixture.real
        comparable = cells.clone()
        comparable[:, real] -= deviation[real].log()
        if schema is None:
            return nats, cells, comparable
        by_column = [torch.from_numpy(schema.by_column(z.cpu().numpy())) for z in (cells, comparable)]
        log_scale = torch.from_numpy(schema.log_scale(x.double().cpu().numpy()))
        return nats.cpu() + log_scale, by_column[0] + torch.from_numpy(schema.log_scales), by_column[1]
    has_gaps = bool(torch.isnan(x).any())
    nats = anomaly_score(machine, x, solutions)
    surprise = conditional_surprise(machine, x) if all_units or (blames and not has_gaps) else None
    return nats, surprise, surprise if surprise is None or surprise.shape[1:] == x.shape[1:] else None


def _most_surprising(row: "Tensor", names: tuple[str, ...], top: int) -> str | None:
    import numpy as np

    order = [place for place in np.argsort(-np.nan_to_num(row, nan=-np.inf)).tolist() if not np.isnan(row[place])]
    return "; ".join(f"{names[place]} {row[place]:.3g}" for place in order[:top]) or None
