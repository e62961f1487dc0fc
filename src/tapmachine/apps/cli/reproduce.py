"""tapmachine reproduce: the paper's figures"""

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.common import BAD_INPUT, Device, Quiet, Seed, app, fail, speaker, warnings_as_lines

if TYPE_CHECKING:
    from tapmachine.apps.reproduce.lab import Lab
    from tapmachine.apps.reproduce.models import Model


@app.command(epilog="Example:  tapmachine reproduce bmnist-denoise --quick")
def reproduce(
    figure: Annotated[
        str | None, typer.Argument(help="Label of the figure in the paper, or all.", show_default=False)
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use small machines and the embedded digits.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output folder.", show_default="reproduced/full, or …/quick")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the files of MNIST and cbcl_faces.npz.", show_default="MNIST is downloaded"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of machines trained in parallel.")] = 1,
    centered: Annotated[
        bool, typer.Option("--centered", help="Center gradients where the units allow it, unlike the paper.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make figures and tables of the paper; repeat the command to resume after a crash."""
    from tapmachine.apps.reproduce import FIGURES, experiment

    if show_list:
        for name in FIGURES:
            print(f"{name:24}{experiment(name).TITLE}")
        return
    if figure is None:
        raise ValueError("missing figure: give the label of one, or all; --list shows the labels")
    names = list(FIGURES) if figure == "all" else [figure]
    modules = [experiment(name) for name in names]
    if data is not None and not data.is_dir():
        raise ValueError(f"{data}: there is no such folder")

    from tapmachine.analysis.plots import new_figure
    from tapmachine.apps.reproduce.lab import Lab
    from tapmachine.runs.build import pick_device

    new_figure(1, 1)  # says so at once, if there is nothing to draw with
    kind = ("quick" if quick else "full") + ("-centered" if centered else "") + (f"-{seed}" if seed else "")
    out = out or Path("reproduced") / kind
    say = speaker(quiet)
    lab = Lab(out, quick, data and data.resolve(), pick_device(device), seed, say, centered=centered).open()
    begun = time.perf_counter()
    with warnings_as_lines(quiet):
        needed = {model.name: model for module in modules for model in module.needed(lab)}
        _train(lab, list(needed.values()), jobs)
        for name, module in zip(names, modules, strict=True):
            print(lab.save_figure(name, module.draw(lab)))
    say(f"{time.perf_counter() - begun:.0f} s on {lab.device}")
    if lab.missing:
        fail(f"some panels were left out: {'; '.join(sorted(lab.missing))}", BAD_INPUT)


def _train(lab: "Lab", models: "list[Model]", jobs: int) -> None:
    """Trains what is not trained yet, several at a time in separate processes."""
    if jobs == 1:
        for model in models:
            lab.run(model)
        return
    import os
    import subprocess

    # Processes that share the cores must not each use all of them.
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    environment = threads | os.environ
    waiting, running = [model.name for model in models], dict[str, subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = subprocess.Popen([sys.executable, "-c", TRAIN_ONE, name, *_arguments(lab)], env=environment)
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if process.returncode:
                    for other in running.values():
                        other.terminate()
                    fail(
                        f"training {name} ended with status {process.returncode}; repeat the command to resume",
                        BAD_INPUT,
                    )


TRAIN_ONE = f"import sys; from {__name__} import train_one; train_one(*sys.argv[1:])"


def _arguments(lab: "Lab") -> list[str]:
    return [str(lab.out), str(int(lab.quick)), str(lab.data or ""), lab.device, str(lab.seed), str(int(lab.centered))]


def train_one(name: str, out: str, quick: str, data: str, device: str, seed: str, centered: str) -> None:
    """Trains one model, in a separate process."""
    from tapmachine.apps.cli.common import one_line_errors
    from tapmachine.apps.reproduce.lab import Lab
    from tapmachine.apps.reproduce.models import DEEP_MODELS, TABLE

    model = {model.name: model for model in (*TABLE, *DEEP_MODELS)}[name]
    with one_line_errors(), suppress(KeyboardInterrupt):  # which the process that started this one speaks of
        lab = Lab(Path(out), quick == "1", Path(data) if data else None, device, int(seed), speaker(False))
        replace(lab, centered=centered == "1").run(model)
