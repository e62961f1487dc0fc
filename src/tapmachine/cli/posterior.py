"""tapmachine denoise, impute and score: a run's machine as a prior"""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.cli.common import Device, Quiet, Run, app, open_run, speaker, warnings_as_lines

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.beliefs import Solution
    from tapmachine.channels import Channel
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.posterior import Posterior
    from tapmachine.runs import RunFolder

SHOWN = 12  # rows of a picture

Out = Annotated[Path, typer.Option("--out", "-o", help="An .npy file for the results.", show_default=False)]
Deviations = Annotated[
    Path | None, typer.Option("--std", help="An .npy file for standard deviations of the results, too.")
]
Rounded = Annotated[bool, typer.Option("--rounded", help="Most probable states, in place of means.")]
Examples = Annotated[
    bool, typer.Option("--examples/--no-examples", help="Whether rows of the run's data that look alike help.")
]
PictureFile = Annotated[Path | None, typer.Option(help="A .png file of the first rows, if they are images.")]


@app.command(epilog="Example:  tapmachine denoise runs/d noisy.npy --channel bsc --p 0.2 --out clean.npy")
def denoise(
    run: Run,
    noisy: Annotated[str, typer.Argument(help="The noisy rows; NaN is what was not observed.", show_default=False)],
    out: Out,
    channel: Annotated[str, typer.Option(help="bsc (flipped bits), erasure, gaussian or poisson.")] = "bsc",
    p: Annotated[float | None, typer.Option(help="Probability of a flip; estimated, unless given.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Of Gaussian noise; estimated, unless given.")] = None,
    rate: Annotated[float | None, typer.Option(help="Of Poisson noise: counts for the value 1.")] = None,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Take noise off rows, with a run's machine as the prior; writes their posterior means."""
    noise = _channel(channel, p, sigma, rate)
    _restore(run, noisy, noise, out, std, rounded, examples, picture, device, quiet)


@app.command(epilog="Example:  tapmachine impute runs/d gaps.csv --out filled.npy --std uncertainty.npy")
def impute(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows with gaps: NaN, or empty cells of a .csv.", show_default=False)],
    out: Out,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of rows, with a run's machine as the prior; writes them with posterior means."""
    from tapmachine.channels import Missing

    _restore(run, data, Missing(), out, std, rounded, examples, picture, device, quiet)


@app.command(epilog="Example:  tapmachine score runs/d new.npy --out scores.csv")
def score(
    run: Run,
    data: Annotated[str, typer.Argument(help="The rows; NaN is what is missing.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv file; printed, unless given.")] = None,
    units: Annotated[
        Path | None, typer.Option(help="An .npy file: how surprising each value is, given the rest of its row.")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score how surprising rows are: −ln P of each in nats, by TAP."""
    import torch

    from tapmachine.files import write_atomically
    from tapmachine.posterior import anomaly_score, surprise
    from tapmachine.recipes import pick_device
    from tapmachine.training_runs import named

    _check_targets((out, ".csv"), (units, ".npy"))
    folder, machine = open_run(run, pick_device(device))
    x = _read(run, data, True).to(machine.device)
    say = speaker(quiet)
    with warnings_as_lines(quiet), named(data):
        if units is not None and bool(torch.isnan(x).any()):
            raise ValueError("has gaps; --units needs complete rows")
        say("solving …")
        scores = anomaly_score(machine, x, _solutions(folder, machine, say))
        surprises = None if units is None else surprise(machine, x)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("row", "nats"))
    table.writerows((number, f"{value:.6g}") for number, value in enumerate(scores.tolist()))
    if out is None:
        print(text.getvalue(), end="")
        quiet = True
    else:
        write_atomically(out, text.getvalue().encode())
    if units is not None and surprises is not None:
        _save(units, surprises)
    if not quiet:
        worst = int(scores.nan_to_num(-torch.inf).argmax())
        average = f"{scores.nanmean():.4g} nats on average, most for row {worst} ({scores[worst]:.4g})"
        print(f"{out}: {len(scores)} rows, {average}")


def _channel(name: str, p: float | None, sigma: float | None, rate: float | None) -> "Channel":
    from tapmachine.channels import BinaryErasure, BinarySymmetric, GaussianNoise, PoissonNoise

    own = {"bsc": "p", "erasure": "p", "gaussian": "sigma", "poisson": "rate"}
    if name not in own:
        raise ValueError(f"--channel is {name!r}; it must be one of {', '.join(own)}")
    for option, value in (("p", p), ("sigma", sigma), ("rate", rate)):
        if value is not None and own[name] != option:
            raise ValueError(f"--{option} is not for the channel {name}, which has --{own[name]}")
    if name == "poisson":
        if rate is None:
            raise ValueError("the channel poisson needs --rate: counts for the value 1")
        return PoissonNoise(rate)
    if name == "gaussian":
        return GaussianNoise(sigma)
    return BinarySymmetric(p) if name == "bsc" else BinaryErasure(p)


def _restore(
    run: Path,
    source: str,
    channel: "Channel",
    out: Path,
    std: Path | None,
    rounded: bool,
    examples: bool,
    picture: Path | None,
    device: str,
    quiet: bool,
) -> None:
    from tapmachine.files import data_description
    from tapmachine.plots import image_strips, new_figure
    from tapmachine.posterior import denoise
    from tapmachine.recipes import pick_device
    from tapmachine.training_runs import named

    _check_targets((out, ".npy"), (std, ".npy"), (picture, ".png"))
    folder, machine = open_run(run, pick_device(device))
    shape = data_description(folder.machine_path).get("image_shape")
    if picture is not None and shape is None:
        raise ValueError(f"{run}: its rows are not images, so there is no picture of them")
    figure = None if picture is None else new_figure(9, 2.2)
    y = _read(run, source, channel.sees_states).to(machine.device)
    train = _training_rows(folder).to(machine.device) if examples else None
    with warnings_as_lines(quiet), named(source):
        posterior = denoise(machine, y, channel, data=train)
    many = posterior.mean.dim() > 2
    result = posterior.states if rounded or many else posterior.mean
    _save(out, result)
    if std is not None:
        variance = posterior.variance.sum(-1) if many else posterior.variance
        _save(std, variance.clamp(min=0).sqrt())
    if figure is not None and picture is not None and shape is not None:
        rows = {"given": y, "restored": result.to(y.dtype)}
        image_strips(figure.subplots(), {name: z[:SHOWN].cpu() for name, z in rows.items()}, (shape[0], shape[1]))
        figure.savefig(picture, dpi=100)
    if not quiet:
        print(_summary(out, posterior))


def _solutions(folder: "RunFolder", machine: "BoltzmannMachine", say: Callable[[str], None]) -> "Solution | None":
    """Of the free machine, from the run's data; None, for those from the rows themselves, if they are not there."""
    from tapmachine.likelihood.tap import solve_from_rows
    from tapmachine.training_runs import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            rows = read_data_of(folder).train
    except ValueError as error:
        say(f"tapmachine: warning: {error}; ln Z is found from the rows that are scored")
        return None
    return solve_from_rows(machine, rows.to(machine.device))


def _training_rows(folder: "RunFolder") -> "Tensor":
    from tapmachine.training_runs import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            return read_data_of(folder).train
    except ValueError as error:
        raise ValueError(f"{error}; to do without the run's data, use --no-examples") from None


def _summary(out: Path, posterior: "Posterior") -> str:
    failed = int((~posterior.converged).sum())
    said = f", {failed} of them not converged" if failed else ""
    deviation = float(posterior.variance.clamp(min=0).mean().sqrt())
    return f"{out}: {len(posterior)} rows through {posterior.channel}{said}; typical deviation {deviation:.3g}"


def _read(run: Path, source: str, are_states: bool) -> "Tensor":
    """Rows for a run's machine; states are binarised as its data were, other observations are taken as they are."""
    from dataclasses import replace

    import numpy as np

    from tapmachine.datasets import read
    from tapmachine.recipes import prepare_gappy_rows
    from tapmachine.training_runs import named, settings_of

    settings = settings_of(open_run(run)[0])
    if not are_states:
        settings = replace(settings, binarise=None)
    rows = np.asarray(read(source, gaps=True, scale_bytes=are_states).rows)
    with named(source):
        return prepare_gappy_rows(settings, rows)


def _check_targets(*targets: tuple[Path | None, str]) -> None:
    """Says before the work what could not be written after it."""
    given = [(path, suffix) for path, suffix in targets if path is not None]
    for path, suffix in given:
        if path.suffix != suffix or path.is_dir():
            raise ValueError(f"{path}: must be a {suffix} file, such as results{suffix}")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}")
    paths = [path.absolute() for path, _ in given]
    if len(set(paths)) < len(paths):
        raise ValueError("results of two kinds cannot go to one file; give them different names")


def _save(path: Path, values: "Tensor") -> None:
    import numpy as np

    from tapmachine.files import write_atomically

    content = io.BytesIO()
    np.save(content, values.cpu().numpy())
    write_atomically(path, content.getvalue())
