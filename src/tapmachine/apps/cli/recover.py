"""Command `tapmachine recover`, which reconstructs signals from measurements with a machine as the prior."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapmachine.apps.cli.common import (
    Device,
    Quiet,
    Run,
    check_word,
    command,
    default_target,
    make_model,
    model_options,
    speaker,
    with_options,
)
from tapmachine.apps.cli.posterior import (
    Deviations,
    Examples,
    Out,
    PictureFile,
    Results,
    Rounded,
    not_converged,
    training_rows,
)
from tapmachine.data.declarations import from_text
from tapmachine.runs.registry import MEASUREMENTS

if TYPE_CHECKING:
    from tapmachine.data.sources import DataSet
    from tapmachine.posterior import Posterior
    from tapmachine.runs.session import Session


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
    examples: Examples = True,
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
    train = training_rows(session) if examples else None
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
        print(_summary(results.out, posterior, kind, model.noise is None, used))
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
        values = read_file(Path(text), "", False)[0]
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


def _summary(out: Path, posterior: "Posterior", kind: str, is_estimated: bool, engine: str) -> str:
    channel: Any = posterior.channel
    noise = ""
    if "noise" in MEASUREMENTS[kind].parameters:
        noise = f"noise {channel.noise:.4g}{', estimated' if is_estimated else ''}; "
    failed = not_converged(posterior)
    convergence = f"{failed} not converged" if failed else "all converged"
    each = f"{channel.operator.shape[0]} {kind.removesuffix('s')} measurements each"
    return f"{out}: {len(posterior)} signals from {each} ({noise}engine {engine}), {convergence}"
