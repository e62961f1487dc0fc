"""Command `python -m reproduction`, which trains the machines of the paper and draws its figures."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from reproduction import FIGURES, experiment
from reproduction.lab import Lab
from reproduction.models import ALL_MODELS
from reproduction.parallel import default_jobs, from_words, run_task, run_tasks, tasks_of
from reproduction.procedure import AS_PRINTED, SWITCHES, Procedure
from tapmachine.accelerator.devices import pick_device
from tapmachine.apps.cli.common import BAD_INPUT, fail, one_line_errors, speaker, warnings_as_lines

FORMATS = ("png", "pdf", "svg")


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    made = ArgumentParser("python -m reproduction", description=__doc__)
    add = made.add_argument
    add("figures", nargs="?", default="", help="labels of the paper's figures, separated by commas, or all")
    add("--list", action="store_true", help="list the figures")
    add("--quick", action="store_true", help="use small machines and the built-in digits")
    add("--out", type=Path, help="output directory (default: reproduced/full or reproduced/quick)")
    add("--data", type=Path, help="directory with MNIST and cbcl_faces.npz (default: MNIST is downloaded)")
    add("--as-printed", action="store_true", help=f"follow the paper's algorithms exactly: {','.join(SWITCHES[:4])}")
    add("--switches", default="", help=f"single differences to the default procedure: {', '.join(SWITCHES)}")
    add("--beside", type=Path, help="output directory whose verdicts are shown for comparison")
    add("--models", default="", help="names of the machines to use, separated by commas (default: all)")
    add("--most-epochs", type=int, help="maximum number of epochs per training run")
    add("--format", default="png", help="formats of the figures, separated by commas: png, pdf, svg")
    add("--jobs", type=int, help="number of processes (default: 1 on a CPU; on a GPU, one per core and at most 12)")
    add("--seed", type=int, default=0, help="random seed")
    add("--device", default="auto", help="cpu, cuda, or auto (GPU if available)")
    add("--quiet", action="store_true", help="print results only")
    return made


def chosen(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Parse names separated by commas.

    Raises:
        ValueError: If a name is unknown.
    """
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{option} contains {unknown[0]!r}; expected names from: {', '.join(known)}")
    return names


def lab_of(options: Namespace) -> Lab:
    """Create the directory of a reproduction."""
    for folder in (options.data, options.beside):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{folder}: directory not found")
    own = AS_PRINTED if options.as_printed else Procedure()
    procedure = own.switched(chosen("--switches", options.switches, SWITCHES))
    words = ("quick" if options.quick else "full", procedure.name, str(options.seed) if options.seed else "")
    return Lab(
        options.out or Path("reproduced") / "-".join(word for word in words if word),
        quick=options.quick,
        data=options.data and options.data.resolve(),
        device=pick_device(options.device),
        seed=options.seed,
        say=speaker(options.quiet),
        procedure=procedure,
        only=frozenset(chosen("--models", options.models, [model.name for model in ALL_MODELS])),
        most_epochs=options.most_epochs,
        beside=options.beside,
    ).open()


def run(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = parser().parse_args(arguments)
    if options.list:
        for name in FIGURES:
            print(f"{name:24}{experiment(name).TITLE}")
        return
    if not options.figures:
        raise ValueError("missing figure: give the label of a figure, or all. Use --list to show the labels")
    names = list(FIGURES) if options.figures == "all" else options.figures.split(",")
    modules = [experiment(name) for name in names]
    kinds = chosen("--format", options.format, FORMATS)
    lab, begun = lab_of(options), time.perf_counter()
    with warnings_as_lines(options.quiet):
        jobs = options.jobs or default_jobs(lab.device)
        if jobs > 1:
            run_tasks(lab, tasks_of(lab, names), jobs, RUN_ONE)
        for name, module in zip(names, modules, strict=True):
            print(lab.save_figure(name, module.draw(lab), kinds))
    lab.say(f"{time.perf_counter() - begun:.0f} s on {lab.device}")
    if lab.missing:
        fail(f"some panels are missing: {'; '.join(sorted(lab.missing))}", BAD_INPUT)


RUN_ONE = "import sys; from reproduction.__main__ import run_one; run_one(sys.argv[1])"


def run_one(words: str) -> None:
    """Run one task, given as encoded words, in this process."""
    with one_line_errors(), suppress(KeyboardInterrupt):  # reported by the parent process
        run_task(*from_words(words, speaker(False)))


if __name__ == "__main__":
    with one_line_errors():
        run(sys.argv[1:])
