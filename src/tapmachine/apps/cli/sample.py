"""Command `tapmachine sample`, which draws samples from a machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import (
    SUFFIXES,
    Device,
    Quiet,
    Run,
    Seed,
    check_targets,
    command,
    open_session,
)
from tapmachine.data.declarations import pairs_from_text
from tapmachine.data.errors import plural

if TYPE_CHECKING:
    from torch import Tensor


@command("tapmachine sample runs/d --count 36 --out samples.npy --picture samples.png")
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
    n_sweeps: Annotated[int, typer.Option(min=0, help="Number of block Gibbs sweeps after annealing.")] = 1000,
    from_data: Annotated[
        bool, typer.Option("--from-data", help="Start Gibbs chains from rows of the data, without annealing.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Data set with rows near the modes, in any format that train accepts (default: the run's data).",
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Output file for a picture of the samples (.png; image data only).")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Draw samples that visit every mode of the machine with its weight.

    For tables, samples are exact. Otherwise, chains are annealed to the
    machine and resampled by their weights.

    For samples of a table in the categories and units of the data, use a
    .csv, .tsv or .parquet output file.
    """
    import torch

    from tapmachine.data.text import TextLayout
    from tapmachine.display.figures import new_figure
    from tapmachine.display.images import image_grid
    from tapmachine.tables.cells import draw
    from tapmachine.tables.output import save_rows

    check_targets((out, SUFFIXES), (picture, (".png",)))
    session = open_session(run, device)
    machine, codec, shape = session.machine, session.codec, session.image_shape
    if picture is not None and shape is None:
        raise ValueError(f"{run}: the data are not images; --picture is available for image data only")
    names = codec.names

    def rows() -> "Tensor | None":
        nonlocal names
        try:
            data = session.data(source)
        except ValueError as error:
            if source is not None or from_data:
                raise
            print(f"{error}; continuing without training rows", file=sys.stderr)
            return None
        names = names or data.names
        return data.train.to(machine.device)

    generator = torch.Generator(machine.device).manual_seed(seed)
    pairs = {} if given is None else _pairs(given, codec.names is not None)
    row = codec.given(pairs, machine.layers[0].n).to(machine.device) if pairs else None
    drawn = draw(machine, count, rows, n_sweeps, generator, row, from_data)
    drawn = machine.layers[0].to_data(drawn).cpu()
    save_rows(out, drawn, TextLayout(names=names), codec.schema)
    if not quiet:
        print(f"{out}: {count} {plural(count, 'sample')}")
    if picture is not None and shape is not None:  # last, so that samples do not depend on Matplotlib
        figure = new_figure(6, 6)
        image_grid(figure.subplots(), drawn, shape)
        figure.savefig(picture, dpi=100)


def _pairs(given: str, has_names: bool) -> dict[Any, str]:
    """Parse NAME=VALUE pairs. In data without column names, names are column numbers."""
    pairs = dict(pairs_from_text(given))
    for name, value in pairs.items():
        if not value:
            raise ValueError(f"--given has {name!r} without a value; expected NAME=VALUE pairs separated by commas")
    return {name if has_names or not name.isdecimal() else int(name): value for name, value in pairs.items()}
