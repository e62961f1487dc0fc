"""Command `tapmachine recover`, which reconstructs signals from measurements with a machine as the prior."""

import math
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import Device, Quiet, Run, app, open_session, speaker, warnings_as_lines
from tapmachine.apps.cli.outputs import default_target, save_array
from tapmachine.apps.cli.posterior import (
    Deviations,
    Examples,
    PictureFile,
    Results,
    Rounded,
    not_converged,
    training_rows,
)
from tapmachine.runs.registry import MEASUREMENTS

if TYPE_CHECKING:
    from tapmachine.data.sources import DataSet
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.posterior import Posterior
    from tapmachine.posterior.measurements import Measurements
    from tapmachine.runs.session import Session


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
    examples: Examples = True,
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
    from tapmachine.posterior.measurements.recovery import fitting_engine
    from tapmachine.runs.data import named

    _check_words(kind, noise, edges, engine)
    results = Results(out or default_target("recovered", y), std, picture, rounded)
    results.check()
    session = open_session(run, device)
    results.check_picture(session)
    machine, measured = session.machine, _read(y)
    channel, notes = _measurements(kind, matrix, noise, bias, edges, machine)
    if measured.rows.shape[1] != channel.operator.shape[0]:
        raise ValueError(
            f"{y}: shape {measured.rows.shape} does not match {matrix} of shape {channel.operator.shape}; "
            f"expected (n_signals, {channel.operator.shape[0]})"
        )
    with named(y):
        channel.check_measurements(np.asarray(measured.rows))
    for note in (*notes, *measured.notes, *_notes_on_training(session)):
        speaker(quiet)(note)
    train = training_rows(session) if examples else None
    used = engine or fitting_engine(channel, machine)
    with warnings_as_lines(quiet), named(y):
        double = in_double(machine)  # float32 free energies are not precise enough to compare solutions
        posterior = recover_signals(double, np.asarray(measured.rows), channel, data=train, engine=engine)  # type: ignore[arg-type]
    values = results.values(posterior)
    values = values.to(machine.dtype) if values.is_floating_point() else values
    save_array(results.out, values)
    if std is not None:
        save_array(std, posterior.deviation.to(machine.dtype))
    if not quiet:
        print(_summary(results.out, posterior, kind, noise is None, used))
    results.draw({"recovered": values.to(machine.dtype)}, session.image_shape, 1.2)


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


def _measurements(
    kind: str, matrix: str, noise: float | None, bias: str | None, edges: str | None, machine: "BoltzmannMachine"
) -> "tuple[Measurements, tuple[str, ...]]":
    """Create the measurement model from the command-line options, and return it with the notes on the matrix."""
    import numpy as np

    from tapmachine.posterior.measurements.recovery import check_measurements
    from tapmachine.runs.data import named

    operator = _read(matrix)
    arguments: dict[str, Any] = {} if noise is None else {"noise": noise}
    if bias is not None:
        arguments["bias"] = _bias(bias)
    if edges is not None:
        arguments["edges"] = _edges(edges)
    with named(matrix):
        channel = resolve_name(MEASUREMENTS[kind].home)(np.asarray(operator.rows), **arguments)
        return check_measurements(channel, machine), operator.notes


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


def _notes_on_training(session: "Session") -> list[str]:
    """Describe how the training data were transformed. The measurement matrix must match the transformed data."""
    threshold = session.settings.binarize
    if threshold is not None:
        return [f"signals have values 0 and 1, because the run's data were binarized at {threshold:g}"]
    if session.description.get("scale_beyond") == 1:
        return ["signals lie in [0, 1], because the run's data were scaled from bytes (0–255)"]
    return []


def _summary(out: Path, posterior: "Posterior", kind: str, estimated: bool, engine: str) -> str:
    channel: Any = posterior.channel
    noise = ""
    if MEASUREMENTS[kind].has_noise:
        noise = f"noise {channel.noise:.4g}{', estimated' if estimated and kind == 'linear' else ''}; "
    failed = not_converged(posterior)
    convergence = f"{failed} not converged" if failed else "all converged"
    each = f"{channel.operator.shape[0]} {kind.removesuffix('s')} measurements each"
    return f"{out}: {len(posterior)} signals from {each} ({noise}engine {engine}), {convergence}"
