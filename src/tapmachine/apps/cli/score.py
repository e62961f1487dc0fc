"""Command `tapmachine score`, which scores the surprise of rows and columns."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import (
    SUFFIXES,
    TABLES,
    Device,
    Quiet,
    Run,
    TableFile,
    check_targets,
    command,
    open_session,
    speaker,
)
from tapmachine.data.errors import plural

if TYPE_CHECKING:
    from tapmachine.likelihood.unbiased import LogPartition
    from tapmachine.runs.session import Session

ROWS_AT_A_TIME = 4096


@command("tapmachine score runs/d new.npy --out scores.csv")
def score(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows to score. NaN marks missing values.", show_default=False)],
    out: TableFile = None,
    top: Annotated[int, typer.Option(min=0, help="Number of most surprising columns to list per row.")] = 3,
    units: Annotated[
        Path | None,
        typer.Option(help="Output file for the surprise of each value: .npy, .csv, .tsv or .parquet."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score rows by their surprise −ln P in nats, as `RBM.score_samples` does.

    The surprise is exact for tables and small machines, and annealed otherwise.

    If the columns have names, the most surprising columns of each row are
    listed. The surprise of a column is conditional on the other columns. For
    numbers, it is computed in units of the column's standard deviation.
    """
    import numpy as np

    from tapmachine.data.columns import RawColumn
    from tapmachine.runs.data import named
    from tapmachine.tables.cells import log_likelihoods, surprise
    from tapmachine.tables.output import save_columns, save_rows

    check_targets((out, TABLES), (units, SUFFIXES))
    session, say = open_session(run, device), speaker(quiet)
    rows, parts = session.read(data)
    for note in rows.notes:
        say(note)
    names = (session.codec.names if rows.layout is None else rows.layout.column_names()) or ()
    machine, codec, found = session.machine, session.codec, []
    with named(data):
        partition = _log_partition(session, say)
        for x in (some for part in parts for some in part.to(machine.device).split(ROWS_AT_A_TIME)):
            nothing = np.empty((len(x), 0))
            blame = surprise(machine, codec, x, standardized=True) if names and top else nothing
            cells = nothing if units is None else surprise(machine, codec, x)
            found.append((-log_likelihoods(machine, codec, x, partition), blame, cells))
    nats, blames, cells = (np.concatenate(own) for own in zip(*found, strict=True))
    columns = [
        RawColumn("row", "int", np.arange(len(nats), dtype=np.float64), "int64"),
        RawColumn("nats", "float", np.array([float(f"{value:.6g}") for value in nats.tolist()]), "float64"),
    ]
    if names and top:
        columns.append(RawColumn.of("columns", [_most_surprising(row, names, top) for row in blames], "text"))
    save_columns(out, columns)
    if units is not None:
        save_rows(units, cells, rows.layout)
    if not quiet and out is not None:
        worst = int(np.nan_to_num(nats, nan=-np.inf).argmax())
        average = f"{np.nanmean(nats):.4g} nats on average, highest for row {worst} ({nats[worst]:.4g})"
        print(f"{out}: {len(nats)} {plural(len(nats), 'row')}, {average}")


def _log_partition(session: "Session", say: Callable[[str], None]) -> "LogPartition":
    """Compute ln Z, exactly or by annealing from the means of the run's data, if these are available."""
    from tapmachine.data.rows import spaced
    from tapmachine.exact import closed_log_partition
    from tapmachine.likelihood.tap import N_STARTS
    from tapmachine.likelihood.unbiased import unbiased_log_partition

    if closed_log_partition(session.machine) is not None:
        return unbiased_log_partition(session.machine)
    say("estimating ln Z …")
    rows = session.example_rows(say)
    return unbiased_log_partition(session.machine, None if rows is None else spaced(rows, N_STARTS))


def _most_surprising(row: Any, names: Sequence[str], top: int) -> str | None:
    import numpy as np

    order = [place for place in np.argsort(-np.nan_to_num(row, nan=-np.inf)).tolist() if not np.isnan(row[place])]
    return "; ".join(f"{names[place]} {row[place]:.3g}" for place in order[:top]) or None
