"""tapmachine train"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tapmachine.cli.common import (
    INTERRUPTED,
    AsJson,
    Device,
    Quiet,
    app,
    fail,
    numbers,
    speaker,
    summary,
    warnings_as_lines,
)
from tapmachine.settings import HIDDEN, OBJECTIVES, PRODUCTS, STARTS, VISIBLE, Settings, read_settings


def _default(name: str) -> str:
    """The default of a setting, for the help: an option by itself is None, so as not to override a file of settings."""
    value = getattr(Settings, name)
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if value == 0 else str(value)


@app.command(epilog="Example:  tapmachine train digits --binarise 0.5 --hidden 64 --epochs 100 --out runs/d")
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Data: digits, mnist, mnist-test, a .npy, .npz (FILE.npz:NAME), .csv or idx(.gz) file, or a folder "
            "of .npy files. Not needed to continue a run.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder.", show_default=False)],
    settings: Annotated[
        Path | None, typer.Option(help="JSON settings file; command-line flags take precedence.")
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(help="Number of hidden units; several layers as 500,200.", show_default=_default("hidden")),
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(
            help=f"Type of the visible units: {', '.join(VISIBLE)}. auto infers it from the data.",
            show_default=_default("visible"),
        ),
    ] = None,
    hidden_units: Annotated[
        str | None,
        typer.Option(help=f"Type of the hidden units: {', '.join(HIDDEN)}.", show_default=_default("hidden_units")),
    ] = None,
    pretrain: Annotated[
        int | None,
        typer.Option(help="Pretraining epochs of each of several hidden layers.", show_default="a fifth of --epochs"),
    ] = None,
    pretrain_on: Annotated[
        str | None,
        typer.Option(
            help="What a layer is pretrained on: samples or means of the layer below.",
            show_default=_default("pretrain_on"),
        ),
    ] = None,
    doubled: Annotated[
        bool | None,
        typer.Option(
            "--doubled",
            help="Pretrain each layer with the input it will have from both sides (Salakhutdinov and Hinton).",
            show_default="off",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(help="Interval of real values, such as 0,1.", show_default="0,1 or the range of the data"),
    ] = None,
    binarise: Annotated[
        float | None, typer.Option(help="Threshold: values above it become 1, others 0.", show_default="off")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Held-out rows: a file, or a fraction such as 0.1.", show_default="none")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the data. With more than before, a run continues.", show_default=_default("epochs")
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Rows of each gradient step.", show_default="1/50 of the rows, between 10 and 100"),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help=f"Training objective: {', '.join(OBJECTIVES)}. default is herded chains, followed by a TAP sweep "
            "where a layer is real-valued.",
            show_default=_default("objective"),
        ),
    ] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(help="Sweeps of the TAP solutions or chains in each step.", show_default="10; 1 for cd"),
    ] = None,
    particles: Annotated[
        int | None, typer.Option(help="Number of TAP solutions or chains.", show_default="the batch size")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help=f"Starting points of the TAP solutions: {', '.join(STARTS)}.", show_default=_default("start")
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Initial learning rate.", show_default="chosen from the data")
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(help="Final learning rate as a fraction of the initial one.", show_default=_default("decay")),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of the gradient steps.", show_default=_default("momentum"))
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="Coefficient of the L2 penalty on the weights.", show_default=_default("weight_decay")),
    ] = None,
    l1: Annotated[
        float | None,
        typer.Option("--l1", help="Coefficient of the L1 penalty on the weights.", show_default=_default("l1")),
    ] = None,
    centred: Annotated[
        bool | None,
        typer.Option(
            "--centred/--not-centred",
            help="Whether gradients are centered.",
            show_default="centered where the units allow it",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the parameters: float32 or float64.", show_default=_default("dtype"))
    ] = None,
    products: Annotated[
        str | None,
        typer.Option(
            help=f"Format of matrix products on a GPU: {', '.join(PRODUCTS)}.", show_default=_default("products")
        ),
    ] = None,
    measure_every: Annotated[
        int | None, typer.Option(help="Epochs between measurements.", show_default=_default("measure_every"))
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Epochs between checkpoints.", show_default=_default("save_every"))
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(help="Epochs between kept machines; 0 keeps none.", show_default="about 20 in all")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.", show_default=_default("seed"))] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a machine in a run folder, or continue a run.

    After a crash, --out RUN is enough, and the run ends in the same bits. With --epochs and --out, a run continues to
    a larger number of epochs, also if it was finished.
    """
    given = {
        "pretrain": pretrain, "pretrain_on": pretrain_on, "doubled": doubled,
        "data": data, "visible": visible, "hidden_units": hidden_units, "binarise": binarise, "epochs": epochs,
        "batch_size": batch_size, "objective": objective, "sweeps": sweeps, "particles": particles, "start": start,
        "learning_rate": learning_rate, "decay": decay, "momentum": momentum, "weight_decay": weight_decay, "l1": l1,
        "centred": centred, "dtype": dtype, "products": products, "measure_every": measure_every,
        "save_every": save_every, "keep_every": keep_every, "seed": seed, "hidden": numbers("hidden", hidden, int),
        "interval": numbers("interval", interval, float), "validation": _share_or_file(validation),
    }  # fmt: skip
    chosen = _settings(out, settings, {name: value for name, value in given.items() if value is not None})
    from tapmachine.distributed import leads, together
    from tapmachine.recipes import pick_device
    from tapmachine.training_runs import run_training

    quiet = quiet or not leads()
    silent = quiet or as_json
    try:
        with warnings_as_lines(quiet), together(pick_device(device)) as own:
            run = run_training(chosen, out, own, progress=not silent, say=speaker(silent))
    except KeyboardInterrupt:
        fail("interrupted; what was saved is safe, and the same command goes on from there", INTERRUPTED)
    last = run.records[-1] if run.records else {}
    if as_json and leads():
        print(json.dumps({"run": str(out), "resumed_at": run.resumed_at, "last": last}))
    elif not quiet:
        print(f"{out}: {summary(last)}")


def _settings(out: Path, path: Path | None, flags: dict[str, Any]) -> Settings:
    in_run = out / "settings.json"
    if path is None and "data" not in flags and in_run.exists():  # what was asked for before
        path = in_run
    found = {} if path is None else read_settings(path)
    found |= flags
    for name in ("data", "validation"):
        if isinstance(found.get(name), str):
            found[name] = _absolute(found[name])
    if "data" not in found:
        raise ValueError("missing data: give a data set, a file or a folder, as in: tapmachine train digits --out RUN")
    return Settings(**found)


def _absolute(source: str) -> str:
    """A file or folder by its whole path, so that a run knows its data from any folder; a named data set as it is."""
    from tapmachine.datasets import NAMED

    path, mark, key = source.partition(".npz:")
    file = Path(path + ".npz" if mark else path)
    is_path = file.is_file() or (file.is_dir() and source not in NAMED)
    return f"{file.resolve()}{mark and ':' + key}" if is_path else source


def _share_or_file(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
