"""Command `tapmachine predict`, which predicts a column of a table."""

from typing import Annotated

import typer

from tapmachine.apps.cli.common import (
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

ROWS_AT_A_TIME = 4096


@command("tapmachine predict runs/penguins new.csv --column species --out species.csv")
def predict(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows with the other columns, possibly with NaN.", show_default=False)],
    column: Annotated[str, typer.Option(help="Name of the column to predict.", show_default=False)],
    out: TableFile = None,
    interval: Annotated[float, typer.Option(help="Coverage probability of the intervals.")] = 0.9,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict a column of a table from the other columns.

    The output contains category probabilities, or means and intervals of
    numbers.
    """
    from dataclasses import replace

    import numpy as np
    import torch

    from tapmachine.runs.data import named
    from tapmachine.tables.cells import prediction
    from tapmachine.tables.output import save_columns

    check_targets((out, TABLES))
    session = open_session(run, device)
    schema = session.codec.schema
    optional = () if schema is None or column not in schema.names else (column,)
    rows, _ = session.read(data, optional=optional)
    with named(data):
        x = torch.from_numpy(np.array(rows.rows, np.float64)).to(session.machine.device)
        codec = session.codec.with_schema(x.shape[1])
        parts = [prediction(session.machine, codec, part, column, interval) for part in x.split(ROWS_AT_A_TIME)]
    values = [np.concatenate([own.values for own in columns]) for columns in zip(*parts, strict=True)]
    columns = [replace(own, values=z) for own, z in zip(parts[0], values, strict=True)]
    save_columns(out, columns, rows.layout)
    if out is not None:
        speaker(quiet)(f"{out}: predictions of {column} for {len(x)} {plural(len(x), 'row')}")
