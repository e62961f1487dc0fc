"""Commands `tapmachine denoise`, `impute` and `recover`, which use a machine as the prior."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import (
    SUFFIXES,
    Device,
    Quiet,
    Run,
    Seed,
    check_targets,
    check_word,
    command,
    default_target,
    make_model,
    model_options,
    open_session,
    speaker,
    with_options,
)
from tapmachine.data.declarations import from_text
from tapmachine.data.errors import plural
from tapmachine.runs.registry import CHANNELS, MEASUREMENTS
from tapmachine.units.registry import word_for

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.data.sources import DataSet
    from tapmachine.posterior import Posterior
    from tapmachine.posterior.channels import Channel
    from tapmachine.runs.session import Session
    from tapmachine.tables.codec import EncodedData
    from tapmachine.units import Units

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
PictureFile = Annotated[
    Path | None, typer.Option(help="Output file for a picture of the first rows (.png; image data only).")
]


@dataclass(frozen=True)
class Results:
    """Output files for a posterior.

    Attributes:
        out: File for the means or the most probable states.
        std: File for the standard deviations, or None.
        picture: File for a picture of the first rows, or None.
        rounded: Whether to write the most probable states instead of means.
    """

    out: Path
    std: Path | None
    picture: Path | None
    rounded: bool

    def open(self, run: Path, device: str) -> "Session":
        """Check that the files can be written, and open the run."""
        check_targets((self.out, SUFFIXES), (self.std, SUFFIXES), (self.picture, (".png",)))
        session = open_session(run, device)
        if self.picture is not None and session.image_shape is None:
            raise ValueError(f"{session.path}: the data are not images; --picture is available for image data only")
        return session

    def values(self, posterior: "Posterior") -> "Tensor":
        """Return the means or, for categories and with --rounded, the most probable states."""
        return posterior.states if self.rounded else posterior.values

    def draw(self, rows: "Mapping[str, Tensor]", session: "Session", height: float = 2.2) -> None:
        """Draw the first rows, if a picture was requested. Called last, so that results do not need Matplotlib."""
        if self.picture is None or session.image_shape is None:
            return
        from tapmachine.display.figures import new_figure
        from tapmachine.display.images import image_strips

        figure = new_figure(9, height)
        image_strips(figure.subplots(), {name: z[:SHOWN].cpu() for name, z in rows.items()}, session.image_shape)
        figure.savefig(self.picture, dpi=100)


def not_converged(posterior: "Posterior") -> int:
    """Return the number of rows without a converged solution."""
    return int((~posterior.converged).sum())


@command("tapmachine denoise runs/d noisy.npy --channel bsc --p 0.2 --out clean.npy")
@with_options(model_options(CHANNELS, {}), after="channel")
def denoise(
    *,
    run: Run,
    noisy: Annotated[str, typer.Argument(help="Noisy rows. NaN marks unobserved values.", show_default=False)],
    out: Out = None,
    channel: Annotated[
        str | None,
        typer.Option(
            help=f"Noise model: {', '.join(CHANNELS)} (default: bsc, flips of bits, spins or categories, for discrete "
            "values; gaussian for real values).",
            show_default=False,
        ),
    ] = None,
    std: Deviations = None,
    rounded: Rounded = False,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
    **parameters: float | None,
) -> None:
    """Denoise rows with a machine as the prior.

    The output contains posterior means.
    """
    check_word("channel", channel, CHANNELS)
    results = Results(out or default_target("denoised", noisy), std, picture, rounded)
    session = results.open(run, device)
    units = session.machine.layers[0]
    name, noise = _channel(channel, parameters, units)
    _, y, posterior = _restored(session, noisy, noise, results, quiet)
    if not quiet:
        why = "" if channel else f", the default for {_kind(units)} visible units"
        about = "" if bool(y.isnan().all()) else _in_words(name, posterior.channel, parameters)
        what = f"denoised with channel {name}{about}{why}"
        print(_summary(results.out, posterior, what, posterior.deviation))
    results.draw({"given": y, "restored": results.values(posterior).to(y.dtype)}, session)


@command("tapmachine impute runs/d gaps.csv --out filled.csv --std uncertainty.csv")
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
    picture: PictureFile = None,
    device: Device = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Fill in missing values with a machine as the prior.

    Missing numbers are replaced by posterior means, and missing categories
    by the most probable ones.
    """
    import torch

    from tapmachine.posterior.channels import Missing

    results = Results(out or default_target("imputed", data), std, picture, rounded)
    session = results.open(run, device)
    rows, y, posterior = _restored(session, data, Missing(), results, quiet)
    if not quiet:
        n_gaps = int(y.isnan().sum()) if rows.schema is None else rows.schema.n_gaps(y.cpu().numpy())
        what = f"with {n_gaps} missing {plural(n_gaps, 'value')} filled in"
        missing = y.isnan() if rows.schema is None else torch.zeros_like(y, dtype=torch.bool)  # columns have units
        print(_summary(results.out, posterior, what, posterior.deviation[missing]))
    results.draw({"given": y, "restored": results.values(posterior).to(y.dtype)}, session)
    if interval is not None or draws:
        _write_gaps(session, rows, y, results.out, (interval, draws, seed), quiet)


def _write_gaps(
    session: "Session", data: "EncodedData", y: "Tensor", out: Path, how: tuple[float | None, int, int], quiet: bool
) -> None:
    """Write the intervals and probabilities of missing cells, and multiple imputations."""
    import torch

    from tapmachine.runs.data import named
    from tapmachine.tables.cells import gap_table, posterior_of
    from tapmachine.tables.output import save_columns, save_rows

    (interval, draws, seed), say = how, speaker(quiet)
    with named(data.name):
        posterior = posterior_of(session.machine, y)
        if interval is not None:
            path = _beside(out, "gaps").with_suffix(".csv" if out.suffix == ".npy" else out.suffix)
            save_columns(path, gap_table(session.machine, session.codec.with_schema(y.shape[1]), y, interval))
            say(f"{path}: one line per missing cell")
        generator = torch.Generator(y.device).manual_seed(seed)
        for number, rows in enumerate(posterior.draws(draws, generator) if draws else (), 1):
            save_rows(_beside(out, str(number)), rows, data.layout, data.schema, data)
        if draws:
            say(f"{_beside(out, '1')} to {_beside(out, str(draws)).name}: multiple imputations")


def _beside(path: Path, word: str) -> Path:
    """Append a word to the stem of a file name, as in filled-1.csv for filled.csv."""
    return path.with_name(f"{path.stem}-{word}{path.suffix}")


def _restored(
    session: "Session", source: str, channel: "Channel", results: Results, quiet: bool
) -> "tuple[EncodedData, Tensor, Posterior]":
    """Read observations, compute their posterior, and write it."""
    import torch

    from tapmachine.exact import mixture_of
    from tapmachine.posterior import denoise
    from tapmachine.posterior.channels import GaussianNoise, Missing, PoissonNoise
    from tapmachine.runs.data import named
    from tapmachine.tables.output import save_rows

    machine, codec = session.machine, session.codec
    data, parts = session.read(source, channel.sees_states, not isinstance(channel, PoissonNoise))
    for note in data.notes:
        speaker(quiet)(note)
    y = torch.cat(list(parts)).to(machine.device)
    is_unknown = isinstance(channel, GaussianNoise) and channel.sigma is None
    if is_unknown and channel.unknown(y, machine.layers[0]) is None:
        raise ValueError(f"{source}: all values are equal, so the noise level cannot be estimated; set --sigma")
    train = session.example_rows(speaker(quiet)) if mixture_of(machine) is None else None
    with named(source):
        posterior = denoise(machine, y, channel, data=train)
    keeps = isinstance(channel, Missing) and codec.binarize is None  # observed values are written unchanged
    save_rows(results.out, results.values(posterior), data.layout, data.schema, data if keeps else None)
    if results.std is not None:
        save_rows(results.std, codec.deviations(posterior.deviation.cpu().numpy()), data.layout)
    return data, y, posterior


def _summary(out: Path, posterior: "Posterior", what: str, deviation: "Tensor") -> str:
    failed = not_converged(posterior)
    said = {"adaptive": " by adaptive TAP", "gibbs": " by Gibbs chains"}.get(posterior.method, "")
    said += f", {failed} not converged" if failed else ""
    typical = f"; typical standard deviation {float(deviation.square().mean().sqrt()):.3g}" if deviation.numel() else ""
    return f"{out}: {len(posterior)} {plural(len(posterior), 'row')} {what}{said}{typical}"


def _channel(name: str | None, parameters: Mapping[str, float | None], units: "Units") -> tuple[str, "Channel"]:
    """Create a channel, by default the first one that supports the visible units, and return its name with it."""
    suitable = [word for word, entry in CHANNELS.items() if resolve_name(entry.home).supports(units)]
    name = name or suitable[0]
    if name not in suitable:
        others = " or ".join(f"--channel {word}" for word in suitable)
        raise ValueError(f"--channel {name} does not support {_kind(units)} visible units; use {others}")
    try:
        channel: Channel = make_model("channel", name, CHANNELS, parameters)
        channel.check(units)
    except ValueError as error:  # of a parameter, after the name of the class
        prefix, colon, message = str(error).partition(": ")
        raise ValueError(f"--{message}" if colon and prefix.isidentifier() else str(error)) from None
    return name, channel


def _in_words(name: str, channel: Any, given: Mapping[str, float | None]) -> str:
    """Describe the values of the parameters of a channel."""
    values = {parameter: getattr(channel, parameter) for parameter in CHANNELS[name].parameters}
    return "".join(
        f" ({parameter}={value:.4g}{', estimated' if given[parameter] is None else ''})"
        for parameter, value in values.items()
        if value is not None
    )


def _kind(units: "Units") -> str:
    """Return the name of the unit type, as in --visible."""
    return word_for(units) or type(units).__name__


@command("tapmachine recover runs/d y.npy --matrix F.npy --out signals.npy")
@with_options(model_options(MEASUREMENTS, {"bias": str, "edges": str}), after="kind")
def recover(
    *,
    run: Run,
    y: Annotated[
        str,
        typer.Argument(
            help="Measurements, one row per signal: a .npy, .npz or .csv file. NaN marks missing measurements.",
            show_default=False,
        ),
    ],
    matrix: Annotated[
        str,
        typer.Option(
            help="Measurement matrix F, one row per measurement and one column per visible unit, or per category of "
            "categorical units: a .npy or .csv file, or an .npz file from scipy.sparse.save_npz.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            help="Type of measurement: linear (Fx), sign (sign of Fx), magnitude (|Fx|), quantized (number of "
            "--edges below Fx) or counts (Poisson counts with mean Fx)."
        ),
    ] = "linear",
    engine: Annotated[
        str | None,
        typer.Option(
            help="Algorithm: gamp (for large matrices with independent entries), vamp (for measurements that depend on "
            "many components) or ep (for local measurements, such as a blur). By default, the algorithm is chosen from "
            "the matrix.",
        ),
    ] = None,
    out: Out = None,
    std: Deviations = None,
    rounded: Rounded = False,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
    **parameters: Any,
) -> None:
    """Recover signals x from measurements, such as y = Fx + noise.

    The output contains posterior means, computed with a machine as the prior.
    """
    import numpy as np

    from tapmachine.machine.checks import in_double
    from tapmachine.posterior.measurements import recover as recover_signals
    from tapmachine.posterior.measurements.recovery import ENGINES, check_measurements, fitting_engine
    from tapmachine.runs.data import named
    from tapmachine.tables.output import save_rows

    check_word("kind", kind, MEASUREMENTS)
    check_word("engine", engine, ENGINES)
    results = Results(out or default_target("recovered", y), std, picture, rounded)
    session = results.open(run, device)
    machine, measured = session.machine, _read(y)
    operator, given = _read(matrix), {name: _value(name, text) for name, text in parameters.items()}
    with named(matrix):
        model = make_model("kind", kind, MEASUREMENTS, given, np.asarray(operator.rows))
        channel = check_measurements(model, machine)
    if measured.rows.shape[1] != channel.operator.shape[0]:
        raise ValueError(
            f"{y}: shape {measured.rows.shape} does not match {matrix} of shape {channel.operator.shape}; "
            f"expected (n_signals, {channel.operator.shape[0]})"
        )
    with named(y):
        channel.check_measurements(np.asarray(measured.rows))
    for note in (*operator.notes, *measured.notes, *_notes_on_training(session)):
        speaker(quiet)(note)
    train = session.example_rows(speaker(quiet))
    used = engine or fitting_engine(channel, machine)
    with named(y):
        double = in_double(machine)  # float32 free energies are not precise enough to compare solutions
        posterior = recover_signals(double, np.asarray(measured.rows), channel, data=train, engine=engine)  # type: ignore[arg-type]
    values = results.values(posterior)
    values = values.to(machine.dtype) if values.is_floating_point() else values
    save_rows(results.out, values)
    if std is not None:
        save_rows(std, posterior.deviation.to(machine.dtype))
    if not quiet:
        print(_recovery_summary(results.out, posterior, kind, model.noise is None, used))
    results.draw({"recovered": values.to(machine.dtype)}, session, 1.2)


def _read(source: str) -> "DataSet":
    """Read a file of numbers without scaling. NaN is allowed."""
    from tapmachine.data.sources import read

    return read(source, gaps=True, scale_beyond=None)


def _value(name: str, text: Any) -> Any:
    """Parse an option: --edges is a list of numbers, and --bias a number or the numbers in a file, (M,)."""
    import numpy as np

    from tapmachine.data.formats import read_file

    if name == "edges":
        return from_text("--edges", text, tuple[float, ...])
    if name == "noise" and text is not None and not 0 <= text < math.inf:
        raise ValueError(f"--noise is {text:g}; expected a non-negative, finite standard deviation")
    if name == "noise" or text is None:
        return text
    try:
        bias = np.asarray(float(text))
    except ValueError:
        if not Path(text).is_file():
            raise ValueError(
                f"--bias is {text!r}; expected a number, or a file with one number per measurement"
            ) from None
        values = read_file(Path(text))[0]
        if isinstance(values, list) or values.dtype.kind not in "biuf":
            raise ValueError(f"{text}: expected numbers") from None
        bias = values.reshape(-1).astype(np.float64)  # a .csv file may have one row or one column
    if not np.isfinite(bias).all():
        raise ValueError(f"--bias {text} contains non-finite values; expected finite numbers")
    return bias


def _notes_on_training(session: "Session") -> list[str]:
    """Describe how the training data were transformed. The measurement matrix must match the transformed data."""
    threshold = session.settings.binarize
    if threshold is not None:
        return [f"signals have values 0 and 1, because the run's data were binarized at {threshold:g}"]
    if session.description.get("scale_beyond") == 1:
        return ["signals lie in [0, 1], because the run's data were scaled from bytes (0–255)"]
    return []


def _recovery_summary(out: Path, posterior: "Posterior", kind: str, is_estimated: bool, engine: str) -> str:
    channel: Any = posterior.channel
    noise = ""
    if "noise" in MEASUREMENTS[kind].parameters:
        noise = f"noise {channel.noise:.4g}{', estimated' if is_estimated else ''}; "
    failed = not_converged(posterior)
    convergence = f"{failed} not converged" if failed else "all converged"
    each = f"{channel.operator.shape[0]} {kind.removesuffix('s')} measurements each"
    signals = f"{len(posterior)} {plural(len(posterior), 'signal')}"
    return f"{out}: {signals} from {each} ({noise}engine {engine}), {convergence}"
