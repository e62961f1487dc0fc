"""tapmachine denoise, impute and score: a run's machine as a prior"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.arrays import SUFFIXES, check_targets, default_target, save_array
from tapmachine.apps.cli.common import Device, Quiet, Run, app, open_run, speaker, warnings_as_lines
from tapmachine.runs.registry import CHANNELS, ChannelWord
from tapmachine.units.registry import word_for

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.beliefs import Solution
    from tapmachine.data.sources import DataSet
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.posterior import Posterior
    from tapmachine.posterior.channels import Channel
    from tapmachine.runs.folder import RunFolder
    from tapmachine.units import Units

SHOWN = 12  # rows of a picture

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Results: a .npy, .csv or .tsv file (default: text for text, with the same header, otherwise .npy).",
        show_default=False,
    ),
]
Deviations = Annotated[
    Path | None, typer.Option("--std", help="Standard deviations of the results: a .npy, .csv or .tsv file.")
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
    out: Out = None,
    channel: Annotated[
        str | None,
        typer.Option(
            help="bsc (flipped bits, spins or categories; their default), gaussian (the default for real values), "
            "erasure or poisson.",
            show_default=False,
        ),
    ] = None,
    p: Annotated[float | None, typer.Option(help="Probability of a flip (default: estimated).")] = None,
    sigma: Annotated[float | None, typer.Option(help="Spread of Gaussian noise (default: estimated).")] = None,
    rate: Annotated[float | None, typer.Option(help="Of Poisson noise: counts for the value 1.")] = None,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Take noise off rows, with a run's machine as the prior; writes their posterior means."""
    if channel is not None and channel not in CHANNELS:
        raise ValueError(f"--channel is {channel!r}; expected one of {', '.join(CHANNELS)}")
    noise = _Noise(channel, {"p": p, "sigma": sigma, "rate": rate})
    out = out or default_target("denoised", noisy)
    _restore(run, noisy, noise, out, std, rounded, examples, picture, device, quiet)


@app.command(epilog="Example:  tapmachine impute runs/d gaps.csv --out filled.csv --std uncertainty.csv")
def impute(
    run: Run,
    data: Annotated[str, typer.Argument(help="Rows with gaps: NaN, or empty cells of a .csv.", show_default=False)],
    out: Out = None,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Examples = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of rows, with a run's machine as the prior; writes them with posterior means."""
    out = out or default_target("imputed", data)
    _restore(run, data, None, out, std, rounded, examples, picture, device, quiet)


@app.command(epilog="Example:  tapmachine score runs/d new.npy --out scores.csv")
def score(
    run: Run,
    data: Annotated[str, typer.Argument(help="The rows; NaN is what is missing.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv file (default: print).")] = None,
    units: Annotated[
        Path | None,
        typer.Option(help="A .npy, .csv or .tsv file: how surprising each value is, given the rest of its row."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score how surprising rows are: −ln P of each in nats, by TAP; exactly for real-valued tables."""
    import torch

    from tapmachine.machine.files import write_atomically
    from tapmachine.posterior import anomaly_score, conditional_surprise
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.data import named

    check_targets((out, (".csv",)), (units, SUFFIXES))
    folder, machine = open_run(run, pick_device(device))
    say = speaker(quiet)
    found, x = _read(folder, data, True, True, say)
    x = x.to(machine.device)
    with warnings_as_lines(quiet), named(data):
        if units is not None and bool(torch.isnan(x).any()):
            raise ValueError("has gaps; --units needs complete rows")
        say("solving …")
        scores = anomaly_score(machine, x, _solutions(folder, machine, say))
        surprises = None if units is None else conditional_surprise(machine, x)
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
        save_array(units, surprises, found.layout)
    if not quiet:
        worst = int(scores.nan_to_num(-torch.inf).argmax())
        average = f"{scores.nanmean():.4g} nats on average, most for row {worst} ({scores[worst]:.4g})"
        print(f"{out}: {len(scores)} rows, {average}")


@dataclass(frozen=True)
class _Noise:
    """What a user says of the noise.

    Attributes:
        name: of the channel; None for one that suits the units.
        given: its parameters; None for those that are not given.
    """

    name: str | None
    given: dict[str, float | None]

    def channel(self, units: "Units") -> tuple[str, "Channel"]:
        """The channel and its name, if they suit the units."""
        suitable = [word for word, entry in CHANNELS.items() if _suits(entry, units)]
        name = self.name or suitable[0]
        if name not in suitable:
            others = " or ".join(f"--channel {word}" for word in suitable)
            raise ValueError(f"--channel {name} does not support {_kind(units)} visible units; use {others}")
        self._check_parameters(name, units)
        channel: Channel = resolve_name(CHANNELS[name].home)(self.given[CHANNELS[name].parameter])
        return name, channel

    def _check_parameters(self, name: str, units: "Units") -> None:
        entry, n_states = CHANNELS[name], units.support.n_states
        for option, value in self.given.items():
            if value is not None and entry.parameter != option:
                raise ValueError(f"--{option} is not for the channel {name}, which has --{entry.parameter}")
        value = self.given[entry.parameter]
        if value is None and entry.required:
            raise ValueError(f"missing --{entry.parameter}, which --channel {name} requires")
        low, high = entry.limits
        if entry.needs == "states" and n_states is not None:  # beyond, a wrong state is more probable than the true one
            high = 1 - 1 / n_states
        if value is not None and not low <= value <= high:
            raise ValueError(f"--{entry.parameter} is {value:g}; expected a value between {low:g} and {high:g}")

    def in_words(self, name: str, channel: "Channel", units: "Units") -> str:
        """The channel that was used with its parameter, and why."""
        parameter = CHANNELS[name].parameter
        value = getattr(channel, parameter)
        estimated = ", estimated" if self.given[parameter] is None else ""
        with_value = "" if value is None else f" ({parameter}={value:.4g}{estimated})"
        why = "" if self.name else f", the default for {_kind(units)} visible units"
        return f"through {name}{with_value}{why}"


def _suits(entry: ChannelWord, units: "Units") -> bool:
    """Whether a channel can be used with visible units."""
    has_states, are_numbers = units.support.n_states is not None, not units.is_categorical
    return {
        "anything": True,
        "states": has_states,
        "numbers": are_numbers,
        "bounded numbers": are_numbers and (has_states or units.is_bounded()),
    }[entry.needs]


def _kind(units: "Units") -> str:
    """The unit type as --visible has it."""
    return word_for(units) or type(units).__name__


def _restore(
    run: Path,
    source: str,
    noise: _Noise | None,
    out: Path,
    std: Path | None,
    rounded: bool,
    examples: bool,
    picture: Path | None,
    device: str,
    quiet: bool,
) -> None:
    """Denoises rows; without noise, fills their gaps."""
    import numpy as np

    from tapmachine.analysis.plots import image_strips, new_figure
    from tapmachine.machine.files import data_description
    from tapmachine.posterior import denoise
    from tapmachine.posterior.channels import Missing
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.data import named, settings_of

    check_targets((out, SUFFIXES), (std, SUFFIXES), (picture, (".png",)))
    folder, machine = open_run(run, pick_device(device))
    say, units = speaker(quiet), machine.layers[0]
    shape = data_description(folder.machine_path).get("image_shape")
    if picture is not None and shape is None:
        raise ValueError(f"{run}: its rows are not images, so there is no picture of them")
    name, channel = ("", Missing()) if noise is None else noise.channel(units)
    found, y = _read(folder, source, channel.sees_states, name != "poisson", say)
    y = y.to(machine.device)
    if name == "gaussian" and noise is not None and noise.given["sigma"] is None and channel.unknown(y, units) is None:
        raise ValueError(f"{source}: its values are all alike, so that the noise cannot be estimated; give --sigma")
    train = training_rows(folder).to(machine.device) if examples else None
    with warnings_as_lines(quiet), named(source):
        posterior = denoise(machine, y, channel, data=train)
    many = units.is_categorical
    result = posterior.states if rounded or many else posterior.mean
    variance = (posterior.variance.sum(-1) if many else posterior.variance).clamp(min=0)
    stays = noise is None and settings_of(folder).binarize is None
    save_array(out, result, found.layout, np.asarray(found.rows) if stays else None, found.schema)
    if std is not None:
        save_array(std, variance.sqrt(), found.layout)
    if noise is None:
        what, variance = f"with {int(y.isnan().sum())} gaps filled", variance[y.isnan()]
    else:
        what = noise.in_words(name, posterior.channel, units)
    if not quiet:
        print(_summary(out, posterior, what, variance))
    if picture is not None and shape is not None:  # last: results must not depend on a library for pictures
        figure = new_figure(9, 2.2)
        rows = {"given": y, "restored": result.to(y.dtype)}
        image_strips(figure.subplots(), {name: z[:SHOWN].cpu() for name, z in rows.items()}, (shape[0], shape[1]))
        figure.savefig(picture, dpi=100)


def _solutions(folder: "RunFolder", machine: "BoltzmannMachine", say: Callable[[str], None]) -> "Solution | None":
    """Of the free machine, from the run's data; None, for those from the rows themselves, if they are not there."""
    from tapmachine.likelihood.tap import solve_from_rows
    from tapmachine.runs.data import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            rows = read_data_of(folder).train
    except ValueError as error:
        say(f"tapmachine: warning: {error}; ln Z is found from the rows that are scored")
        return None
    return solve_from_rows(machine, rows.to(machine.device))


def training_rows(folder: "RunFolder") -> "Tensor":
    """Rows that a run was trained on, as examples."""
    from tapmachine.runs.data import read_data_of

    try:
        with warnings_as_lines(quiet=False):
            return read_data_of(folder).train
    except ValueError as error:
        raise ValueError(f"{error}; to do without the run's data, use --no-examples") from None


def _summary(out: Path, posterior: "Posterior", what: str, variance: "Tensor") -> str:
    failed = int((~posterior.converged).sum())
    said = f", {failed} of them not converged" if failed else ""
    deviation = f"; typical deviation {float(variance.mean().sqrt()):.3g}" if variance.numel() else ""
    return f"{out}: {len(posterior)} rows {what}{said}{deviation}"


def _read(
    folder: "RunFolder", source: str, are_states: bool, are_values: bool, say: Callable[[str], None]
) -> tuple["DataSet", "Tensor"]:
    """Rows for a run's machine, as they are read and as it takes them.

    Bytes are scaled as those of the training were, unless they are counts; states are binarized likewise.
    """
    from dataclasses import replace

    import numpy as np

    from tapmachine.data.sources import read
    from tapmachine.runs.build import prepare_gappy_rows
    from tapmachine.runs.data import named, scale_of_bytes, schema_of, settings_of

    settings = settings_of(folder)
    if not are_states:
        settings = replace(settings, binarize=None)
    found = read(
        source, gaps=True, scale_beyond=scale_of_bytes(folder) if are_values else None, schema=schema_of(folder)
    )
    for note in found.notes:
        say(note)
    if settings.binarize is not None:
        say(f"values above {settings.binarize:g} are taken as 1, others as 0, as in training")
    with named(source):
        return found, prepare_gappy_rows(settings, np.asarray(found.rows))
