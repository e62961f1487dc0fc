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

if TYPE_CHECKING:
    from torch import Tensor

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
    from tapmachine.exact import mixture_of
    from tapmachine.runs.data import named
    from tapmachine.tables.output import save_columns, save_rows

    check_targets((out, TABLES), (units, SUFFIXES))
    session, say = open_session(run, device), speaker(quiet)
    rows, parts = session.read(data)
    for note in rows.notes:
        say(note)
    names = (session.codec.names if rows.layout is None else rows.layout.column_names()) or ()
    with named(data):
        gappy = units is not None and isinstance(rows.rows, np.ndarray) and bool(np.isnan(rows.rows).any())
        if gappy and mixture_of(session.machine) is None:
            raise ValueError("has missing values; --units requires complete rows, or a machine trained on a table")
        partition = _log_partition(session, say)
        scored = [
            _scores(session, some, partition, units is not None, bool(names) and top > 0)
            for part in parts
            for some in part.to(session.machine.device).split(ROWS_AT_A_TIME)
        ]
    nats = np.concatenate([own[0] for own in scored])
    columns = [
        RawColumn("row", "int", np.arange(len(nats), dtype=np.float64), "int64"),
        RawColumn("nats", "float", np.array([float(f"{value:.6g}") for value in nats.tolist()]), "float64"),
    ]
    if names and top and scored[0][2] is not None:
        blame = np.concatenate([own[2] for own in scored])
        columns.append(RawColumn.of("columns", [_most_surprising(row, names, top) for row in blame], "text"))
    save_columns(out, columns)
    if units is not None:
        save_rows(units, np.concatenate([own[1] for own in scored]), rows.layout)
    if not quiet and out is not None:
        worst = int(np.nan_to_num(nats, nan=-np.inf).argmax())
        average = f"{np.nanmean(nats):.4g} nats on average, highest for row {worst} ({nats[worst]:.4g})"
        print(f"{out}: {len(nats)} rows, {average}")


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


def _scores(
    session: "Session", x: "Tensor", partition: "LogPartition", all_units: bool, blames: bool
) -> tuple[Any, Any, Any]:
    """Compute the surprise −ln P of rows and of single values.

    Returns:
        The surprise of each row and of each value, both in the units of the data, and the surprise of each value in
        standardized units. The last two are None if they are not available.
    """
    from tapmachine.exact import mixture_of
    from tapmachine.posterior import conditional_surprise
    from tapmachine.tables.cells import log_likelihoods, surprise

    machine, codec = session.machine, session.codec
    nats = -log_likelihoods(machine, codec, x, partition)
    if mixture_of(machine) is not None:
        return nats, surprise(machine, codec, x), surprise(machine, codec, x, standardized=True)
    if not (all_units or (blames and not bool(x.isnan().any()))):
        return nats, None, None
    cells = conditional_surprise(machine, x).cpu().numpy()
    return nats, cells, cells if cells.shape == tuple(x.shape) else None


def _most_surprising(row: Any, names: Sequence[str], top: int) -> str | None:
    import numpy as np

    order = [place for place in np.argsort(-np.nan_to_num(row, nan=-np.inf)).tolist() if not np.isnan(row[place])]
    return "; ".join(f"{names[place]} {row[place]:.3g}" for place in order[:top]) or None
