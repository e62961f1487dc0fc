"""Command `tapmachine reproduce`, which reproduces the paper's figures."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import BAD_INPUT, Device, Quiet, Seed, app, fail, speaker, warnings_as_lines

FORMATS = ("png", "pdf", "svg")


@app.command(epilog="Example:  tapmachine reproduce bmnist-denoise --quick")
def reproduce(
    figure: Annotated[
        str | None,
        typer.Argument(help="Labels of the paper's figures, separated by commas, or all.", show_default=False),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use small machines and the built-in digits.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output directory (default: reproduced/full or reproduced/quick)."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory with the MNIST files and cbcl_faces.npz (default: MNIST is downloaded)."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of parallel processes (default: 1 on a CPU, one per CPU core and at most 12 on a GPU)."
        ),
    ] = None,
    as_printed: Annotated[
        bool,
        typer.Option(
            "--as-printed", help="Follow the paper's algorithms exactly. Equivalent to the next four options together."
        ),
    ] = False,
    printed_iteration: Annotated[
        bool, typer.Option("--printed-iteration", help="Iterate as in Alg. 1, with explicit, undamped sweeps.")
    ] = False,
    unique_solutions: Annotated[
        bool, typer.Option("--unique-solutions", help="Average gradients over distinct solutions, not over particles.")
    ] = False,
    weight_momentum: Annotated[
        bool, typer.Option("--weight-momentum", help="Use momentum on the weights only, as in Alg. 2.")
    ] = False,
    table_units: Annotated[
        bool, typer.Option("--table-units", help="Train on unscaled values from 0 to 1, as in Table I.")
    ] = False,
    centered: Annotated[
        bool, typer.Option("--centered", help="Center gradients where the units allow it (the paper does not).")
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(help="Output directory of another procedure or seed, whose results are shown for comparison."),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Names of the models to use, separated by commas (default: all).")
    ] = None,
    most_epochs: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of epochs per training run (default: no limit).")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Formats of the figures, separated by commas: png, pdf, svg.")
    ] = "png",
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Reproduce figures and tables of the paper. After a crash, rerun the command to resume."""
    from tapmachine.apps.reproduce import FIGURES, experiment

    if show_list:
        for name in FIGURES:
            print(f"{name:24}{experiment(name).TITLE}")
        return
    if figure is None:
        raise ValueError("missing figure: give the label of a figure, or all. Use --list to show the labels")
    names = list(FIGURES) if figure == "all" else figure.split(",")
    modules = [experiment(name) for name in names]
    for folder in (data, beside):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{folder}: directory not found")
    kinds = formats.split(",")
    if unknown := [kind for kind in kinds if kind not in FORMATS]:
        raise ValueError(f"--format is {unknown[0]!r}; expected {', '.join(FORMATS)}")

    from tapmachine.analysis.plots import new_figure
    from tapmachine.apps.reproduce.lab import Lab
    from tapmachine.apps.reproduce.parallel import default_jobs, run_tasks, tasks_of
    from tapmachine.apps.reproduce.procedure import Procedure
    from tapmachine.runs.build import pick_device

    new_figure(1, 1)  # fails at once if Matplotlib is missing
    procedure = Procedure(
        printed_iteration=as_printed or printed_iteration,
        unique_solutions=as_printed or unique_solutions,
        field_momentum=not (as_printed or weight_momentum),
        rescale=not (as_printed or table_units),
        centered=centered,
    )
    words = ("quick" if quick else "full", procedure.name, str(seed) if seed else "")
    out = out or Path("reproduced") / "-".join(word for word in words if word)
    say = speaker(quiet)
    lab = Lab(
        out,
        quick,
        data and data.resolve(),
        pick_device(device),
        seed,
        say,
        procedure=procedure,
        only=_chosen(models),
        most_epochs=most_epochs,
        beside=beside,
    ).open()
    begun = time.perf_counter()
    with warnings_as_lines(quiet):
        n_processes = jobs or default_jobs(lab.device)
        if n_processes > 1:
            run_tasks(lab, tasks_of(lab, names), n_processes, RUN_ONE)
        for name, module in zip(names, modules, strict=True):
            print(lab.save_figure(name, module.draw(lab), kinds))
    say(f"{time.perf_counter() - begun:.0f} s on {lab.device}")
    if lab.missing:
        fail(f"some panels are missing: {'; '.join(sorted(lab.missing))}", BAD_INPUT)


def _chosen(names: str | None) -> frozenset[str]:
    """Parse a list of model names. Raises ValueError for unknown models."""
    from tapmachine.apps.reproduce.models import ALL_MODELS

    chosen = frozenset(names.split(",")) if names else frozenset()
    known = [model.name for model in ALL_MODELS]
    if unknown := sorted(chosen - {*known}):
        raise ValueError(f"--models contains {unknown[0]!r}; expected names from: {', '.join(known)}")
    return chosen


RUN_ONE = f"import sys; from {__name__} import run_one; run_one(sys.argv[1])"


def run_one(words: str) -> None:
    """Run one task, given as encoded words, in this process."""
    from tapmachine.apps.cli.common import one_line_errors
    from tapmachine.apps.reproduce.parallel import from_words, run_task

    with one_line_errors(), suppress(KeyboardInterrupt):  # reported by the parent process
        run_task(*from_words(words, speaker(False)))
