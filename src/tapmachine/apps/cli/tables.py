"""Command `tapmachine predict`, and functions for tables that several commands share."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.arrays import check_targets, save_columns
from tapmachine.apps.cli.common import Device, Quiet, Run, app, speaker, warnings_as_lines

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tapmachine.data.columns import RawColumn
    from tapmachine.data.text import TextLayout
    from tapmachine.exact import Conditioned
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.tables.schema import Column, Schema

TABLES = (".csv", ".tsv", ".parquet")
ROWS_AT_A_TIME = 4096
NOT_A_TABLE = "expected a machine trained on a table (mixed or real-valued columns) with the default hidden units"


@app.command(epilog="Example:  tapmachine predict runs/penguins new.csv --column species --out species.csv")
def predict(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows with the other columns, possibly with NaN.", show_default=False)],
    column: Annotated[str, typer.Option(help="Name of the column to predict.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file: .csv, .tsv or .parquet (default: standard output).")
    ] = None,
    interval: Annotated[float, typer.Option(help="Coverage probability of the intervals.")] = 0.9,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict a column of a table from the other columns.

    The output contains category probabilities, or means and intervals of
    numbers.
    """
    import numpy as np
    import torch

    from tapmachine.accelerator.devices import pick_device
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session
    from tapmachine.tables.codec import read_rows

    check_targets((out, TABLES))
    _check_level(interval)
    session = Session(run, pick_device(device))
    machine, own = session.machine, session.schema
    optional = () if own is None or column not in own.names else (column,)
    found = read_rows(data, gaps=True, scale_beyond=None, schema=own, optional=optional)
    with warnings_as_lines(quiet), named(data):
        schema = own or plain_schema(session.columns, found.rows.shape[1])
        target = next((known for known in schema.columns if known.name == column), None)
        if target is None:
            raise ValueError(f"--column is {column!r}; expected one of {', '.join(map(repr, schema.names))}")
        rows = torch.from_numpy(np.array(found.rows, np.float64)).to(machine.device)
        rows[:, schema.components[column]] = torch.nan
        results = [_prediction(machine, part, schema, target, interval) for part in rows.split(ROWS_AT_A_TIME)]
    names = [result.name for result in results[0]]
    columns = [
        replace(results[0][place], values=np.concatenate([part[place].values for part in results]))
        for place in range(len(names))
    ]
    layout = found.layout
    if out is None:
        print_columns(columns, layout)
        return
    save_columns(out, columns, layout)
    speaker(quiet)(f"{out}: predictions of {column} for {len(rows)} rows")


def _prediction(
    machine: "BoltzmannMachine", rows: "Tensor", schema: "Schema", target: "Column", level: float
) -> "list[RawColumn]":
    """Predict the most probable category and all probabilities, or the mean and interval of a number."""
    from tapmachine.data.columns import RawColumn

    where, posterior = schema.components[target.name], exact_posterior(machine, rows)
    if target.kind in ("binary", "categorical"):
        mean = posterior.moments.mean[:, where].cpu().numpy()
        shares = probabilities(target, mean)
        names = [str(value) for value in target.categories]
        return [
            target.decode(mean),
            *(RawColumn(name, "float", shares[:, place], "float64") for place, name in enumerate(names)),
        ]
    ends = posterior.intervals(level)
    decoded = [target.decode(z[:, where].cpu().numpy()) for z in (posterior.moments.mean, *ends)]
    return [replace(own, name=name) for own, name in zip(decoded, (target.name, "lower", "upper"), strict=True)]


def probabilities(column: "Column", mean: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":  # (N, width) -> (N, q)
    """Return the probability of each value of a binary or categorical column, given the means of its components."""
    import numpy as np

    if len(column.categories) == 1:  # a constant column
        return np.ones((len(mean), 1))
    return np.concatenate((1 - mean, mean), 1) if column.kind == "binary" else mean


def exact_posterior(machine: "BoltzmannMachine", rows: "Tensor") -> "Conditioned":
    """Compute the posterior of missing cells. Raises ValueError unless the machine was trained on a table."""
    from tapmachine.exact import mixture_of

    mixture = mixture_of(machine)
    if mixture is None:
        raise ValueError(f"the machine is {machine.summary()}; {NOT_A_TABLE}")
    return mixture.condition(rows)


def plain_schema(columns: "list[str] | None", n_columns: int) -> "Schema":
    """Create a schema for a table of real numbers, which requires no encoding."""
    from tapmachine.tables.schema import Column, Schema

    names = columns or [str(column) for column in range(n_columns)]
    if len(names) != n_columns:
        raise ValueError(f"has {n_columns} columns; expected {len(names)}, as in the training data")
    return Schema(tuple(Column(name, "real", "float", "float64", "") for name in names))


def gap_columns(posterior: "Conditioned", schema: "Schema", level: float) -> "list[RawColumn]":
    """Create a table with one line per missing cell.

    Each line has the row, the column, the imputed value, and either the ends of the interval or the probabilities of
    the categories.
    """
    import numpy as np

    from tapmachine.data.columns import RawColumn
    from tapmachine.data.text import columns_as_cells

    _check_level(level)
    mean, missing = posterior.moments.mean.cpu().numpy(), posterior.x.isnan().cpu().numpy()
    ends = [end.cpu().numpy() for end in posterior.intervals(level)]
    lines: list[tuple[int, int, list[str]]] = []
    for place, column in enumerate(schema.columns):
        where = schema.components[column.name]
        rows = np.flatnonzero(missing[:, where].any(1))
        cells = [columns_as_cells([column.decode(z[rows][:, where])]) for z in (mean, *ends)] if len(rows) else []
        is_category = column.kind in ("binary", "categorical")
        shares = probabilities(column, mean[rows][:, where]) if is_category else None
        for number, row in enumerate(rows.tolist()):
            value, lower, upper = (own[number][0] for own in cells)
            if shares is not None:
                pairs = zip(column.categories, shares[number], strict=True)
                lower, upper, words = "", "", "; ".join(f"{name} {share:.4g}" for name, share in pairs)
            lines.append((row, place, [column.name, value, lower, upper, words if is_category else ""]))
    lines.sort(key=lambda line: line[:2])
    numbers = RawColumn("row", "int", np.array([line[0] for line in lines], np.float64), "int64")
    texts = [
        RawColumn.of(name, [line[2][place] or None for line in lines], "text")
        for place, name in enumerate(("column", "value", "lower", "upper", "probabilities"))
    ]
    return [numbers, *(replace(own, type="text", values=own.values) for own in texts)]


def beside(path: Path, word: str) -> Path:
    """Append a word to the stem of a file name, as in filled-1.csv for filled.csv."""
    return path.with_name(f"{path.stem}-{word}{path.suffix}")


def print_columns(columns: "list[RawColumn]", layout: "TextLayout | None") -> None:
    """Print a table as comma-separated values, with the row names of the layout."""
    from tapmachine.data.text import TextLayout, columns_as_cells, to_text

    layout = layout or TextLayout()
    of_index = (layout.names or ())[: layout.n_index]
    layout = TextLayout(",", (*of_index, *(column.name for column in columns)), layout.index)
    sys.stdout.write(to_text(columns_as_cells(columns), layout))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"--interval is {level:g}; expected a probability between 0 and 1, such as 0.9")
