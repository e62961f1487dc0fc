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


@app.command(epilog="Example:  tapmachine train digits --binarise 0.5 --hidden 64 --epochs 100 --out runs/d")
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="digits, mnist, mnist-test, a .npy, .npz[:name], .csv or idx(.gz) file, or a folder of .npy files.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder.", show_default=False)] = None,
    settings: Annotated[Path | None, typer.Option(help="A JSON file with settings; flags come before it.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Hidden units; of several layers as 500,200.  [100]")] = None,
    visible: Annotated[str | None, typer.Option(help=f"{', '.join(VISIBLE)}.")] = None,
    hidden_units: Annotated[str | None, typer.Option(help=f"{', '.join(HIDDEN)}.")] = None,
    pretrain: Annotated[int | None, typer.Option(help="Epochs for each of several layers, one by one.  [1/5]")] = None,
    pretrain_on: Annotated[str | None, typer.Option(help="samples or means, of the layer below.")] = None,
    doubled: Annotated[
        bool | None, typer.Option("--doubled", help="Pretrain layers as hearing from two sides.")
    ] = None,
    interval: Annotated[str | None, typer.Option(help="Of real values, as 0,1; that of the data.")] = None,
    binarise: Annotated[float | None, typer.Option(help="Values above it become 1, the others 0.")] = None,
    validation: Annotated[str | None, typer.Option(help="Held-out rows: a file, or a share such as 0.1.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [50]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of each step; 10 to 100, by the number of rows.")] = None,
    objective: Annotated[str | None, typer.Option(help=f"{', '.join(OBJECTIVES)}.")] = None,
    sweeps: Annotated[int | None, typer.Option(help="Of the objective's solutions or chains.")] = None,
    particles: Annotated[int | None, typer.Option(help="Solutions or chains.")] = None,
    start: Annotated[str | None, typer.Option(help=f"Of TAP's solutions: {', '.join(STARTS)}.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The first step size; suits the data.")] = None,
    decay: Annotated[float | None, typer.Option(help="What is left of it in the end.  [0.01]")] = None,
    momentum: Annotated[float | None, typer.Option(help="η.  [0.5]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="ε of the ℓ2 penalty.  [0]")] = None,
    l1: Annotated[float | None, typer.Option("--l1", help="ε of the ℓ1 penalty.  [0]")] = None,
    centred: Annotated[bool | None, typer.Option("--centred/--not-centred", help="Centred gradients.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, the default, or float64.")] = None,
    products: Annotated[
        str | None, typer.Option(help=f"Format of matrix products on a GPU: {', '.join(PRODUCTS)}.  [float32]")
    ] = None,
    measure_every: Annotated[int | None, typer.Option(help="Epochs between measurements.  [1]")] = None,
    save_every: Annotated[int | None, typer.Option(help="Epochs between checkpoints.  [1]")] = None,
    keep_every: Annotated[
        int | None, typer.Option(help="Epochs between machines that are kept; 0: none.  [about 20 in all]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights, the order and all draws.  [0]")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a machine; repeat the command to go on after a crash, to the bit; --out RUN alone is enough."""
    given = {
        "pretrain": pretrain, "pretrain_on": pretrain_on, "doubled": doubled,
        "data": data, "visible": visible, "hidden_units": hidden_units, "binarise": binarise, "epochs": epochs,
        "batch_size": batch_size, "objective": objective, "sweeps": sweeps, "particles": particles, "start": start,
        "learning_rate": learning_rate, "decay": decay, "momentum": momentum, "weight_decay": weight_decay, "l1": l1,
        "centred": centred, "dtype": dtype, "products": products, "measure_every": measure_every,
        "save_every": save_every, "keep_every": keep_every, "seed": seed, "hidden": numbers("hidden", hidden, int),
        "interval": numbers("interval", interval, float), "validation": _share_or_file(validation),
    }  # fmt: skip
    if out is None:
        raise ValueError("where to? say --out FOLDER")
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
        raise ValueError("which data? name a data set, a file or a folder, as in: tapmachine train digits --out RUN")
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
