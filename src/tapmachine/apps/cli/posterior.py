"""Commands `tapmachine denoise` and `tapmachine impute`, which use a machine as the prior."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.arrays import SUFFIXES, check_targets, default_target, save_array, save_columns
from tapmachine.apps.cli.common import Device, Quiet, Run, Seed, app, open_run, speaker, warnings_as_lines
from tapmachine.apps.cli.noise import Noise
from tapmachine.apps.cli.tables import beside, exact_posterior, gap_columns, plain_schema
from tapmachine.runs.registry import CHANNELS

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.beliefs import Solution
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.posterior import Posterior
    from tapmachine.runs.folder import RunFolder
    from tapmachine.tables.codec import EncodedData

SHOWN = 12  # number of rows in a figure

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Output file: .npy, .csv, .tsv or .parquet (default: format of the data if supported, otherwise .npy).",
        show_default=False,
    ),
]
Deviations = Annotated[
    Path | None, typer.Option("--std", help="Output file for standard deviations: .npy, .csv, .tsv or .parquet.")
]
Rounded = Annotated[bool, typer.Option("--rounded", help="Write the most probable states instead of means.")]
Examples = Annotated[
    bool, typer.Option("--examples/--no-examples", help="Also use similar rows of the run's data as starting points.")
]
PictureFile = Annotated[
    Path | None, typer.Option(help="Output file for a picture of the first rows (.png; image data only).")
]


@app.command(epilog="Example:  tapmachine denoise runs/d noisy.npy --channel bsc --p 0.2 --out clean.npy")
def denoise(
    run: Run,
    noisy: Annotated[str, typer.Argument(help="Noisy rows. NaN marks unobserved values.", show_default=False)],
    out: Out = None,
    channel: Annotated[
        str | None,
        typer.Option(
            help="Noise model: bsc (flipped bits, spins or categories), gaussian, erasure or poisson (default: bsc for "
            "discrete values, gaussian for real values).",
            show_default=False,
        ),
    ] = None,
    p: Annotated[float | None, typer.Option(help="Probability of a flip (default: estimated).")] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Standard deviation of Gaussian noise (default: estimated).")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Mean count for a value of 1 (Poisson noise).")] = None,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Denoise rows with a machine as the prior.

    The output contains posterior means.
    """
    if channel is not None and channel not in CHANNELS:
        raise ValueError(f"--channel is {channel!r}; expected one of {', '.join(CHANNELS)}")
    noise = Noise(channel, {"p": p, "sigma": sigma, "rate": rate})
    out = out or default_target("denoised", noisy)
    _restore(run, noisy, noise, out, std, rounded, examples, picture, device, quiet)


@app.command(epilog="Example:  tapmachine impute runs/d gaps.csv --out filled.csv --std uncertainty.csv")
def impute(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows with missing values (NaN or empty cells).", show_default=False)],
    out: Out = None,
    std: Deviations = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Write category probabilities, and intervals with this coverage, to OUT-gaps (tables only).",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=0, help="Number of multiple imputations, written to OUT-1, OUT-2, … (tables only).")
    ] = 0,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Fill in missing values with a machine as the prior.

    Missing numbers are replaced by posterior means, and missing categories
    by the most probable ones.
    """
    out = out or default_target("imputed", data)
    _restore(run, data, None, out, std, rounded, examples, picture, device, quiet)
    if interval is not None or draws:
        _write_gaps(run, data, out, interval, draws, device, seed, quiet)


def _write_gaps(
    run: Path, source: str, out: Path, interval: float | None, draws: int, device: str, seed: int, quiet: bool
) -> None:
    """Write the intervals and probabilities of missing cells, and multiple imputations."""
    import torch

    from tapmachine.runs.build import pick_device
    from tapmachine.runs.data import named

    folder, machine = open_run(run, pick_device(device))
    found, parts = read_rows(folder, source, True, True, lambda line: None)
    say = speaker(quiet)
    with named(source):
        posterior = exact_posterior(machine, torch.cat(list(parts)).to(machine.device))
        schema = found.schema or plain_schema(folder, found.rows.shape[1])
        if interval is not None:
            path = beside(out, "gaps").with_suffix(".csv" if out.suffix == ".npy" else out.suffix)
            save_columns(path, gap_columns(posterior, schema, interval))
            say(f"{path}: one line per missing cell")
        generator = torch.Generator(machine.device).manual_seed(seed)
        for number, rows in enumerate(posterior.draws(draws, generator) if draws else (), 1):
            save_array(beside(out, str(number)), rows, found.layout, None, found.schema, found.columns)
        if draws:
            say(f"{beside(out, '1')} to {beside(out, str(draws)).name}: multiple imputations")


def _restore(
    run: Path,
    source: str,
    noise: Noise | None,
    out: Path,
    std: Path | None,
    rounded: bool,
    examples: bool,
    picture: Path | None,
    device: str,
    quiet: bool,
) -> None:
    """Denoise rows and write the results. If `noise` is None, only fill in missing values."""
    import numpy as np
    import torch

    from tapmachine.analysis.plots import image_strips, new_figure
    from tapmachine.machine.files import data_description
    from tapmachine.posterior import denoise
    from tapmachine.posterior.channels import Missing
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.conditional import has_exact_posterior
    from tapmachine.runs.data import named, settings_of

    check_targets((out, SUFFIXES), (std, SUFFIXES), (picture, (".png",)))
    folder, machine = open_run(run, pick_device(device))
    say, units = speaker(quiet), machine.layers[0]
    is_table = has_exact_posterior(machine)
    shape = data_description(folder.machine_path).get("image_shape")
    if picture is not None and shape is None:
        raise ValueError(f"{run}: the data are not images; --picture is available for image data only")
    name, channel = ("", Missing()) if noise is None else noise.channel(units)
    found, parts = read_rows(folder, source, channel.sees_states, name != "poisson", say)
    y = torch.cat(list(parts)).to(machine.device)
    if (
        name == "gaussian"
        and noise is not None
        and noise.given.get("sigma") is None
        and channel.unknown(y, units) is None
    ):
        raise ValueError(f"{source}: all values are equal, so the noise level cannot be estimated; set --sigma")
    train = training_rows(folder).to(machine.device) if examples and not is_table else None
    with warnings_as_lines(quiet), named(source):
        posterior = denoise(machine, y, channel, data=train)
    many = len(units.state_shape) == 2
    result = posterior.states if rounded or many else posterior.mean
    variance = (posterior.variance.sum(-1) if many else posterior.variance).clamp(min=0)
    stays = noise is None and settings_of(folder).binarize is None
    known = np.asarray(found.rows) if stays and found.schema is None else None
    save_array(out, result, found.layout, known, found.schema, found.columns if stays else ())
    deviation = variance.sqrt()
    if found.schema is not None:
        deviation = torch.from_numpy(found.schema.spread(variance.cpu().numpy()))
    if std is not None:
        save_array(std, deviation, found.layout)
    if noise is None:
        n_gaps = int(y.isnan().sum()) if found.schema is None else found.schema.n_gaps(y.cpu().numpy())
        what, variance = f"with {n_gaps} missing values filled in", variance[y.isnan()]
    else:
        what = noise.in_words(name, posterior.channel, units)
    if not quiet:
        print(_summary(out, posterior, what, variance))
    if picture is not None and shape is not None:  # last, so that results do not depend on Matplotlib
        figure = new_figure(9, 2.2)
        rows = {"given": y, "restored": result.to(y.dtype)}
        image_strips(figure.subplots(), {name: z[:SHOWN].cpu() for name, z in rows.items()}, (shape[0], shape[1]))
        figure.savefig(picture, dpi=100)


def free_solutions(folder: "RunFolder", machine: "BoltzmannMachine", say: Callable[[str], None]) -> "Solution | None":
    """Compute the TAP solutions of the machine from the run's data. Returns None if the data are not available."""
    from tapmachine.likelihood.tap import solve_from_rows
    from tapmachine.runs.data import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            rows = read_data_of(folder).train
    except ValueError as error:
        say(f"tapmachine: warning: {error}; ln Z is estimated from the scored rows instead")
        return None
    return solve_from_rows(machine, rows.to(machine.device))


def training_rows(folder: "RunFolder") -> "Tensor":
    """Read the training rows of a run."""
    from tapmachine.runs.data import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            return read_data_of(folder).train
    except ValueError as error:
        raise ValueError(f"{error}; use --no-examples to run without example rows") from None


def _summary(out: Path, posterior: "Posterior", what: str, variance: "Tensor") -> str:
    failed = int((~posterior.converged).sum())
    said = f", {failed} not converged" if failed else ""
    deviation = f"; typical standard deviation {float(variance.mean().sqrt()):.3g}" if variance.numel() else ""
    return f"{out}: {len(posterior)} rows {what}{said}{deviation}"


def read_rows(
    folder: "RunFolder", source: str, are_states: bool, are_values: bool, say: Callable[[str], None]
) -> tuple["EncodedData", "Iterator[Tensor]"]:
    """Read rows for the machine of a run.

    Bytes are scaled and states are binarized as in training. Counts are not scaled.

    Returns:
        The data set, and an iterator over parts of its rows as visible states.
    """
    from dataclasses import replace

    from tapmachine.data.lazy_rows import LazyRows
    from tapmachine.runs.build import prepare_gappy_rows
    from tapmachine.runs.data import check_columns_of, named, scale_of_bytes, schema_of, settings_of
    from tapmachine.tables.codec import read_rows as read

    settings = settings_of(folder)
    if not are_states:
        settings = replace(settings, binarize=None)
    found = read(
        source, gaps=True, scale_beyond=scale_of_bytes(folder) if are_values else None, schema=schema_of(folder)
    )
    for note in found.notes:
        say(note)
    if settings.binarize is not None:
        say(f"values above {settings.binarize:g} are set to 1 and all others to 0, as in training")

    def parts() -> "Iterator[Tensor]":
        rows = found.rows
        for part in (own for _, own in rows.parts()) if isinstance(rows, LazyRows) else (rows,):
            with named(source):
                yield prepare_gappy_rows(settings, part)

    with named(source):
        check_columns_of(folder, None if found.layout is None else found.layout.column_names())
    return found, parts()
