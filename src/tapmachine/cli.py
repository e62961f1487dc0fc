"""The command line. What takes time to import is imported by the command that needs it, so that --help is quick."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.recipes import Settings

app = typer.Typer(
    name="tapmachine",
    help="Boltzmann machines, trained and scored deterministically by the TAP mean field.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

BAD_INPUT, DIVERGED, INTERRUPTED = 2, 4, 130  # exit codes

Run = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU, if there is one.")]
Seed = Annotated[int, typer.Option(help="Of all draws.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what was asked for.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Runs the command line; what goes wrong is one line, and an exit code."""
    with _one_line_errors():
        app()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        _fail(" ".join(str(error).split()) or type(error).__name__, BAD_INPUT)
    except RuntimeError as error:
        from tapmachine.training import DivergenceError

        if not isinstance(error, DivergenceError):
            raise
        _fail(str(error), DIVERGED)


def _fail(message: str, code: int) -> NoReturn:
    print(f"tapmachine: {message}", file=sys.stderr)
    sys.exit(code)


@contextmanager
def _warnings_as_lines(quiet: bool) -> Iterator[None]:
    """Warnings without file names and lines of code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if not quiet:
            print(f"tapmachine: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device; use --device cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}; it must be cpu, cuda or auto")
    return name


# ----- train


@app.command(
    epilog="Example:  tapmachine train digits --binarise 0.5 --hidden 64 --epochs 100 --batch-size 50 --out runs/d"
)
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="digits, mnist, mnist-test, or a .npy, .npz[:name], .csv or idx(.gz) file.", show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder.", show_default=False)] = None,
    settings: Annotated[Path | None, typer.Option(help="A JSON file with settings; flags come before it.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Hidden units; of several layers as 500,200.  [100]")] = None,
    visible: Annotated[str | None, typer.Option(help="Type of the visible units.  [auto]")] = None,
    hidden_units: Annotated[str | None, typer.Option(help="Type of the hidden units.  [binary]")] = None,
    binarise: Annotated[float | None, typer.Option(help="Values above it become 1, the others 0.")] = None,
    validation: Annotated[str | None, typer.Option(help="Held-out rows: a file, or a share such as 0.1.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [50]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of each step.  [100]")] = None,
    objective: Annotated[str | None, typer.Option(help="default, tap, herded, cd or pcd.")] = None,
    sweeps: Annotated[int | None, typer.Option(help="Of the objective's solutions or chains.")] = None,
    particles: Annotated[int | None, typer.Option(help="Solutions or chains.")] = None,
    start: Annotated[str | None, typer.Option(help="Of TAP's solutions: batch, data, noisy, random, …")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The first step size; suits the data.")] = None,
    decay: Annotated[float | None, typer.Option(help="What is left of it in the end.  [0.01]")] = None,
    momentum: Annotated[float | None, typer.Option(help="η.  [0.5]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="ε of the ℓ2 penalty.  [0]")] = None,
    l1: Annotated[float | None, typer.Option("--l1", help="ε of the ℓ1 penalty.  [0]")] = None,
    centred: Annotated[bool | None, typer.Option("--centred/--not-centred", help="Centred gradients.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.  [float32]")] = None,
    measure_every: Annotated[int | None, typer.Option(help="Epochs between measurements.  [1]")] = None,
    save_every: Annotated[int | None, typer.Option(help="Epochs between checkpoints.  [1]")] = None,
    keep_every: Annotated[int | None, typer.Option(help="Epochs between machines that are kept; 0: none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights, the order and all draws.  [0]")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a machine; repeat the command to go on after a crash, to the bit."""
    given = {
        "data": data, "visible": visible, "hidden_units": hidden_units, "binarise": binarise, "epochs": epochs,
        "batch_size": batch_size, "objective": objective, "sweeps": sweeps, "particles": particles, "start": start,
        "learning_rate": learning_rate, "decay": decay, "momentum": momentum, "weight_decay": weight_decay, "l1": l1,
        "centred": centred, "dtype": dtype, "measure_every": measure_every, "save_every": save_every,
        "keep_every": keep_every, "seed": seed, "hidden": _numbers(hidden), "validation": _share_or_file(validation),
    }  # fmt: skip
    chosen = _settings(settings, {name: value for name, value in given.items() if value is not None})
    if out is None:
        raise ValueError("where to? say --out FOLDER")
    from tapmachine.training_runs import run_training

    silent = quiet or as_json
    say: Callable[[str], None] = (lambda line: None) if silent else (lambda line: print(line, file=sys.stderr))
    try:
        with _warnings_as_lines(quiet):
            run = run_training(chosen, out, _device(device), progress=not silent, say=say)
    except KeyboardInterrupt:
        _fail("interrupted; what was saved is safe, and the same command goes on from there", INTERRUPTED)
    last = run.records[-1] if run.records else {}
    if as_json:
        print(json.dumps({"run": str(out), "resumed_at": run.resumed_at, "last": last}))
    elif not quiet:
        print(f"{out}: {_summary(last)}")


def _settings(path: Path | None, flags: dict[str, Any]) -> "Settings":
    from tapmachine.recipes import Settings, read_settings

    found = {} if path is None else read_settings(path)
    found |= flags
    for name in ("data", "validation"):
        if isinstance(found.get(name), str):
            found[name] = _absolute(found[name])
    if "data" not in found:
        raise ValueError("which data? name a data set or a file, as in: tapmachine train digits --out RUN")
    return Settings(**found)


def _absolute(source: str) -> str:
    """A file by its whole path, so that a run knows its data from any folder; a named data set as it is."""
    path, mark, key = source.partition(".npz:")
    file = Path(path + ".npz" if mark else path)
    return f"{file.resolve()}{mark and ':' + key}" if file.exists() else source


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"hidden is {text!r}; it must be a whole number, or several as in 500,200") from None


def _share_or_file(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _summary(record: dict[str, Any]) -> str:
    names = ("epoch", "log_likelihood", "validation_log_likelihood", "n_unique", "reconstruction_error")
    return ", ".join(f"{name.replace('_', ' ')} {record[name]:.4g}" for name in names if record.get(name) is not None)


# ----- what a run holds


@app.command(epilog="Example:  tapmachine info runs/d")
def info(run: Run, as_json: AsJson = False) -> None:
    """Say what a run is: its data, its machine, how far it came."""
    folder, machine = _open(run)
    settings, records = folder.settings() or {}, folder.records()
    layers = [f"{units.n} {type(units).__name__}" for units in machine.units()]
    if as_json:
        print(json.dumps({"settings": settings, "layers": layers, "epochs": len(records), "records": records}))
        return
    changed = {name: value for name, value in settings.items() if value is not None and name != "data"}
    print(f"{run}: {' – '.join(layers)}, {machine.dtype}".replace("torch.", ""))
    print(f"data: {settings.get('data')}")
    print(f"epochs: {len(records)} of {settings.get('epochs')}; {_summary(records[-1]) if records else 'none yet'}")
    print("settings: " + ", ".join(f"{name} {value}" for name, value in changed.items()))


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """NaN is not JSON."""
    return {name: None if value != value else value for name, value in row.items()}


def _open(run: Path, device: str = "cpu") -> tuple[Any, "BoltzmannMachine"]:
    from tapmachine.files import load
    from tapmachine.runs import RunError, RunFolder

    folder = RunFolder(run)
    if folder.settings() is None or not folder.machine_path.exists():
        raise RunError(f"{run}: is not the folder of a run, or has no checkpoint yet")
    return folder, load(folder.machine_path, device=device)


def _run_settings(folder: Any) -> "Settings":
    from tapmachine.recipes import Settings, check_names

    return Settings(**check_names(folder.settings() or {}, str(folder.path)))


@app.command(epilog="Example:  tapmachine evaluate runs/d --ais")
def evaluate(
    run: Run,
    data: Annotated[str | None, typer.Option(help="Other data to score; those of the run, unless given.")] = None,
    ais: Annotated[bool, typer.Option("--ais", help="Annealed importance sampling, too.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="By enumeration, too; for small machines.")] = False,
    temperatures: Annotated[int | None, typer.Option(help="Of the annealing; as many as it takes.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a run's machine: the log-likelihood of its data, by one estimator or several."""
    from dataclasses import replace

    from tapmachine.files import data_description
    from tapmachine.likelihood import LogLikelihood, compare_likelihoods, exact_log_likelihood, tap_log_likelihood
    from tapmachine.training_runs import read_data

    folder, machine = _open(run, _device(device))
    settings = _run_settings(folder)
    if data is not None:
        settings = replace(settings, data=data, validation=None)
    found = read_data(settings)
    if data is None and found.digest != data_description(folder.machine_path).get("sha256"):
        raise ValueError(
            f"{settings.data}: has changed since {run} was trained on it; to score it as it is, use --data"
        )
    ais = ais or temperatures is not None
    sets = {"train": found.train} if found.held_out is None else {"train": found.train, "held out": found.held_out}
    if data is not None:
        sets = {data: found.train}
    sets = {name: x.to(machine.device) for name, x in sets.items()}
    with _warnings_as_lines(quiet):
        if ais:
            table = compare_likelihoods(machine, *sets.values(), schedule=temperatures, seed=seed)
            print(json.dumps([_without_nan(row) for row in table.as_dicts()]) if as_json else table)
            return
        scores: dict[tuple[str, str], LogLikelihood]
        scores = {("TAP", name): tap_log_likelihood(machine, x) for name, x in sets.items()}
        if exact:
            scores |= {("exact", name): exact_log_likelihood(machine, x) for name, x in sets.items()}
    if as_json:
        rows = [
            {"estimator": estimator, "data": name, "mean": float(score.mean), "per_unit": float(score.per_unit)}
            for (estimator, name), score in scores.items()
        ]
        print(json.dumps([_without_nan(row) for row in rows]))
    else:
        for (estimator, name), score in scores.items():
            print(f"{estimator:6} {name:10} {score!r}")


@app.command(epilog="Example:  tapmachine sample runs/d --count 36 --out samples.npy --picture samples.png")
def sample(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="An .npy file for the samples.")] = Path("samples.npy"),
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    sweeps: Annotated[int, typer.Option(min=0, help="Of block Gibbs sampling, from rows of the data.")] = 1000,
    picture: Annotated[Path | None, typer.Option(help="A .png file, if rows are images.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Draw samples by Gibbs chains that start from data."""
    import io

    import numpy as np
    import torch

    from tapmachine.files import data_description, write_atomically
    from tapmachine.sampling import gibbs
    from tapmachine.training_runs import read_data

    if out.suffix != ".npy":
        raise ValueError(f"{out}: samples are written as .npy")
    folder, machine = _open(run, _device(device))
    x = read_data(_run_settings(folder)).train
    rows = torch.randint(len(x), (count,), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator(machine.device).manual_seed(seed)
    start = machine.units()[0].check_states(x[rows].to(machine.device))
    drawn = gibbs(machine, start, sweeps, generator)[0].cpu()
    content = io.BytesIO()
    np.save(content, drawn.numpy())
    write_atomically(out, content.getvalue())
    if picture is not None:
        shape = data_description(folder.machine_path).get("image_shape")
        if shape is None:
            raise ValueError(f"{run}: its rows are not images, so there is no picture of them")
        _picture(drawn, tuple(shape), picture)
    if not quiet:
        print(f"{out}: {count} samples")


def _picture(images: Any, shape: tuple[int, int], path: Path) -> None:
    from matplotlib.figure import Figure

    from tapmachine.plots import image_grid

    figure = Figure(figsize=(6, 6), layout="constrained")
    image_grid(figure.subplots(), images, shape)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
