"""Command `tapmachine recover`, which reconstructs signals from measurements with a machine as the prior."""

import math
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.arrays import SUFFIXES, check_targets, default_target, save_array
from tapmachine.apps.cli.common import Device, Quiet, Run, app, open_run, speaker, warnings_as_lines
from tapmachine.apps.cli.posterior import SHOWN, Deviations, PictureFile, Rounded, training_rows
from tapmachine.runs.registry import MEASUREMENTS

if TYPE_CHECKING:
    from tapmachine.data.sources import DataSet
    from tapmachine.posterior import Posterior
    from tapmachine.posterior.measurements import Measurements
    from tapmachine.runs.folder import RunFolder


@app.command(epilog="Example:  tapmachine recover runs/d y.npy --matrix F.npy --out signals.npy")
def recover(
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
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the noise (default: estimated for linear measurements, 0 otherwise).",
            show_default=False,
        ),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            help="Bias b of the measurements Fx + b: a number, or a file with one number per measurement (default: 0).",
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            help="Edges between the intervals of quantized measurements, in increasing order, such as 0,0.5,1.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Algorithm: gamp (for large matrices with independent entries), vamp (for measurements that depend on "
            "many components) or ep (for local measurements, such as a blur). By default, the algorithm is chosen from "
            "the matrix.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file: .npy, .csv, .tsv or .parquet (default: recovered.npy, or recovered.csv for text input).",
            show_default=False,
        ),
    ] = None,
    std: Deviations = None,
    rounded: Rounded = False,
    examples: Annotated[
        bool,
        typer.Option("--examples/--no-examples", help="Also use similar rows of the run's data as starting points."),
    ] = True,
    picture: PictureFile = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Recover signals x from measurements, such as y = Fx + noise.

    The output contains posterior means, computed with a machine as the prior.
    """
    import numpy as np

    from tapmachine.machine.checks import in_double
    from tapmachine.posterior.measurements import recover as recover_signals
    from tapmachine.posterior.measurements.recovery import check_measurements, fitting_engine
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.data import named

    _check_words(kind, noise, edges, engine)
    out = out or default_target("recovered", y)
    check_targets((out, SUFFIXES), (std, SUFFIXES), (picture, (".png",)))
    folder, machine = open_run(run, pick_device(device))
    shape = _image_shape(folder) if picture is not None else None
    say = speaker(quiet)
    operator, measured = (_read(source) for source in (matrix, y))
    offset = None if bias is None else _bias(bias)
    with named(matrix):
        channel = check_measurements(_channel(kind, np.asarray(operator.rows), noise, offset, edges), machine)
    n_measurements = channel.operator.shape[0]
    if measured.rows.shape[1] != n_measurements:
        raise ValueError(
            f"{y}: shape {measured.rows.shape} does not match {matrix} of shape {channel.operator.shape}; "
            f"expected (n_signals, {n_measurements})"
        )
    with named(y):
        channel.check_measurements(np.asarray(measured.rows))
    for note in (*operator.notes, *measured.notes, *_notes_on_training(folder)):
        say(note)
    train = training_rows(folder).to(machine.device) if examples else None
    used = engine or fitting_engine(channel, machine)
    options: dict[str, Any] = {"data": train, "engine": engine}
    with warnings_as_lines(quiet), named(y):
        double = in_double(machine)  # float32 free energies are not precise enough to compare solutions
        posterior = recover_signals(double, np.asarray(measured.rows), channel, **options)
    result = posterior.states if rounded else posterior.values
    save_array(out, result.to(machine.dtype) if result.is_floating_point() else result)
    if std is not None:
        save_array(std, posterior.deviation.to(machine.dtype))
    if not quiet:
        print(_summary(out, posterior, kind, noise is None, used))
    if picture is not None and shape is not None:  # last, so that results do not depend on Matplotlib
        from tapmachine.analysis.plots import image_strips, new_figure

        figure = new_figure(9, 1.2)
        image_strips(figure.subplots(), {"recovered": result[:SHOWN].to(machine.dtype).cpu()}, shape)
        figure.savefig(picture, dpi=100)


def _check_words(kind: str, noise: float | None, edges: str | None, engine: str | None) -> None:
    """Raise a ValueError for invalid options, and for options that do not apply to the type of measurements."""
    from tapmachine.posterior.measurements.recovery import ENGINES

    if kind not in MEASUREMENTS:
        raise ValueError(f"--kind is {kind!r}; expected one of {', '.join(MEASUREMENTS)}")
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"--engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    entry = MEASUREMENTS[kind]
    if noise is not None and not entry.has_noise:
        raise ValueError(f"--noise is not available for --kind {kind}, whose noise is the Poisson distribution")
    if noise is not None and not 0 <= noise < math.inf:
        raise ValueError(f"--noise is {noise:g}; expected a non-negative, finite standard deviation")
    if entry.has_edges and edges is None:
        raise ValueError(f"missing --edges: --kind {kind} requires edges, as in --edges 0,0.5,1")
    if edges is not None and not entry.has_edges:
        raise ValueError(f"--edges is not available for --kind {kind}; use --kind quantized")


def _read(source: str) -> "DataSet":
    """Read a file of numbers without scaling. NaN is allowed."""
    from tapmachine.data.sources import read

    return read(source, gaps=True, scale_beyond=None)


def _channel(kind: str, matrix: Any, noise: float | None, bias: Any, edges: str | None) -> "Measurements":
    """Create the measurement model from the command-line options."""
    arguments: dict[str, Any] = {} if noise is None else {"noise": noise}
    if bias is not None:
        arguments["bias"] = bias
    if edges is not None:
        arguments["edges"] = _edges(edges)
    channel: Measurements = resolve_name(MEASUREMENTS[kind].home)(matrix, **arguments)
    return channel


def _bias(text: str) -> Any:
    """Parse --bias: a single number, or the numbers in a file, (M,)."""
    import numpy as np

    from tapmachine.data.errors import DataError
    from tapmachine.data.formats import read_file

    try:
        bias = np.asarray(float(text))
    except ValueError:
        if not Path(text).is_file():
            raise ValueError(
                f"--bias is {text!r}; expected a number, or a file with one number per measurement"
            ) from None
        values = read_file(Path(text), "", False)[0]
        if isinstance(values, list) or values.dtype.kind not in "biuf":
            kind = "text" if isinstance(values, list) else values.dtype.name
            raise DataError(f"{text}: contains {kind}; expected numbers") from None
        bias = values.reshape(-1).astype(np.float64)  # a .csv file may have one row or one column
    if not np.isfinite(bias).all():
        raise ValueError(f"--bias {text} contains non-finite values; expected finite numbers")
    return bias


def _edges(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--edges is {text!r}; expected increasing numbers, as in 0,0.5,1") from None


def _image_shape(folder: "RunFolder") -> tuple[int, int]:
    from tapmachine.machine.files import data_description

    shape = data_description(folder.machine_path).get("image_shape")
    if shape is None:
        raise ValueError(f"{folder.path}: the data are not images; --picture is available for image data only")
    return shape[0], shape[1]


def _notes_on_training(folder: "RunFolder") -> list[str]:
    """Describe how the training data were transformed. The measurement matrix must match the transformed data."""
    from tapmachine.machine.files import data_description
    from tapmachine.runs.data import settings_of

    threshold = settings_of(folder).binarize
    if threshold is not None:
        return [f"signals have values 0 and 1, because the run's data were binarized at {threshold:g}"]
    if data_description(folder.machine_path).get("scale_beyond") == 1:
        return ["signals lie in [0, 1], because the run's data were scaled from bytes (0–255)"]
    return []


def _summary(out: Path, posterior: "Posterior", kind: str, estimated: bool, engine: str) -> str:
    channel: Any = posterior.channel
    noise = ""
    if MEASUREMENTS[kind].has_noise:
        noise = f"noise {channel.noise:.4g}{', estimated' if estimated and kind == 'linear' else ''}; "
    failed = int((~posterior.converged).sum())
    convergence = f"{failed} not converged" if failed else "all converged"
    each = f"{channel.operator.shape[0]} {kind.removesuffix('s')} measurements each"
    return f"{out}: {len(posterior)} signals from {each} ({noise}engine {engine}), {convergence}"
