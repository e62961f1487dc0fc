"""Command `tapmachine sample`, which draws samples from a machine."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.arrays import SUFFIXES, save_array
from tapmachine.apps.cli.common import Device, Quiet, Run, Seed, app, speaker, warnings_as_lines

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tapmachine.machine import BoltzmannMachine
    from tapmachine.tables.schema import Schema


@app.command(epilog="Example:  tapmachine sample runs/d --count 36 --out samples.npy --picture samples.png")
def sample(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file: .npy, .csv, .tsv or .parquet.")] = Path(
        "samples.npy"
    ),
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 100,
    given: Annotated[
        str | None,
        typer.Option(
            help="Fixed column values, as in species=Adelie,island=Dream. All other columns are sampled.",
            show_default=False,
        ),
    ] = None,
    n_sweeps: Annotated[int, typer.Option(min=0, help="Number of block Gibbs sweeps per sample.")] = 1000,
    start_from: Annotated[
        str, typer.Option("--from", help="Starting points of the chains: data, or solutions (TAP solutions).")
    ] = "data",
    source: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Data set with starting points, in any format that train accepts (default: the run's data). Required "
            "for a machine file.",
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Output file for a picture of the samples (.png; image data only).")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Draw samples with Gibbs chains that start from data or TAP solutions. For tables, samples are exact.

    For samples of a table in the categories and units of the data, use a
    .csv, .tsv or .parquet output file.
    """
    import torch

    from tapmachine.accelerator.devices import pick_device
    from tapmachine.data.text import TextLayout
    from tapmachine.display.figures import new_figure
    from tapmachine.display.images import image_grid
    from tapmachine.exact import mixture_of
    from tapmachine.runs.session import Session

    if start_from not in ("data", "solutions"):
        raise ValueError(f"--from is {start_from!r}; expected data or solutions")
    if given is not None and start_from != "data":
        raise ValueError("--given cannot be combined with --from solutions")
    if out.suffix not in SUFFIXES or out.is_dir():
        raise ValueError(f"{out}: expected a .npy, .csv, .tsv or .parquet output file, such as samples.npy")
    session = Session(run, pick_device(device))
    machine, shape = session.machine, session.image_shape
    if picture is not None and shape is None:
        raise ValueError(f"{run}: the data are not images; --picture is available for image data only")
    columns, schema = session.columns, session.schema
    if mixture_of(machine) is not None and start_from == "data":
        starts = torch.full((count, math.prod(machine.layers[0].state_shape)), torch.nan)
    else:
        with warnings_as_lines(quiet=False):
            data = session.data(source)
        rows = torch.randint(len(data.train), (count,), generator=torch.Generator().manual_seed(seed))
        starts, columns = data.train[rows], columns or (None if data.names is None else list(data.names))
    generator = torch.Generator(machine.device).manual_seed(seed)
    names = columns or [str(column) for column in range(starts.shape[1])]
    drawn = _draw(machine, starts, _given(given, names, schema), n_sweeps, start_from, generator, quiet).cpu()
    drawn = machine.layers[0].to_data(drawn)
    save_array(out, drawn, TextLayout(names=None if columns is None else tuple(columns)), schema=schema)
    if not quiet:
        print(f"{out}: {count} samples")
    if picture is not None and shape is not None:  # last, so that samples do not depend on Matplotlib
        figure = new_figure(6, 6)
        image_grid(figure.subplots(), drawn, shape)
        figure.savefig(picture, dpi=100)


def _draw(
    machine: "BoltzmannMachine",
    starts: "Tensor",
    given: "Tensor | None",
    n_sweeps: int,
    start_from: str,
    generator: "torch.Generator",
    quiet: bool,
) -> "Tensor":
    """Draw one sample per starting point. Samples are exact for tables and drawn by Gibbs chains otherwise."""
    from tapmachine.machine.checks import check_rows
    from tapmachine.machine.sampler import gibbs, sample_solutions
    from tapmachine.solver import solve
    from tapmachine.tables.cells import draw

    if start_from == "data":
        fixed = None if given is None else given.to(machine.device)
        return draw(machine, len(starts), lambda count: starts[:count], n_sweeps, generator, fixed)
    found = solve(machine, check_rows(machine, starts))
    speaker(quiet)(f"starting points of the chains: {found}")
    return gibbs(machine, sample_solutions(machine, found, generator)[0], n_sweeps, generator)[0]


def _given(text: str | None, names: Sequence[str], schema: "Schema | None") -> "Tensor | None":  # (n,)
    """Parse NAME=VALUE pairs into a row, with NaN for all other columns."""
    from tapmachine.data.declarations import pairs_from_text
    from tapmachine.tables.codec import Codec

    if text is None:
        return None
    pairs = dict(pairs_from_text(text))
    for name, value in pairs.items():
        if not value:
            raise ValueError(f"--given has {name!r} without a value; expected NAME=VALUE pairs separated by commas")
    return Codec(tuple(names) if schema is None else schema.names, schema).given(pairs)
