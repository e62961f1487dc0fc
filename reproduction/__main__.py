"""Command `python -m reproduction`, which trains the machines of the paper and draws its figures."""

import io
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from matplotlib import style

from reproduction.figure import FIGURES, PAPER, included
from reproduction.lab import Lab
from reproduction.models import ALL_MODELS
from reproduction.solutions import measure_solutions
from reproduction.training import AS_PRINTED, SWITCHES, Procedure
from tapmachine.accelerator.distributed import pick_device
from tapmachine.apps.cli.common import BAD_INPUT, fail, one_line_errors, speaker, warnings_as_lines
from tapmachine.data.files import write_atomically

for name in ("small_machine", "landscape", "maps", "claims"):  # each adds its figures and those it uses
    import_module(f"reproduction.{name}")
DPI = {"png": 200, "pdf": 400, "svg": 400}  # for vector graphics, the resolution of rasterized parts


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    made = ArgumentParser("python -m reproduction", description=__doc__)
    add = made.add_argument
    add("figures", nargs="?", default="", help="labels of figures, separated by commas, or all, or machines")
    add("--list", action="store_true", help="list the figures")
    add("--quick", action="store_true", help="use small machines and the built-in digits")
    add("--out", type=Path, help="output directory (default: reproduced/full or reproduced/quick)")
    add("--data", type=Path, help="directory with MNIST and cbcl_faces.npz (default: MNIST is downloaded)")
    add("--as-printed", action="store_true", help=f"follow the paper's algorithms exactly: {','.join(SWITCHES[:4])}")
    add("--switches", default="", help=f"single differences to the default procedure: {', '.join(SWITCHES)}")
    add("--models", default="", help="names of the machines to use, separated by commas (default: all)")
    add("--most-epochs", type=int, help="maximum number of epochs per training run")
    add("--format", default="png", help="formats of the figures, separated by commas: png, pdf, svg")
    add("--seed", type=int, default=0, help="random seed")
    add("--device", default="auto", help="cpu, cuda, or auto (GPU if available)")
    return made


def chosen(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Parse names separated by commas, and raise a ValueError if a name is unknown."""
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{option} contains {unknown[0]!r}; expected names from: {', '.join(known)}")
    return names


def lab_of(options: Namespace) -> Lab:
    """Create the directory of a reproduction."""
    if options.data is not None and not options.data.is_dir():
        raise ValueError(f"{options.data}: directory not found")
    own = AS_PRINTED if options.as_printed else Procedure()
    procedure = own.switched(chosen("--switches", options.switches, SWITCHES))
    words = ("quick" if options.quick else "full", procedure.name, str(options.seed) if options.seed else "")
    out = options.out or Path("reproduced") / "-".join(word for word in words if word)
    data, device, say = options.data and options.data.resolve(), pick_device(options.device), speaker(False)
    only = frozenset(chosen("--models", options.models, list(ALL_MODELS)))
    lab = Lab(out, options.quick, data, device, options.seed, say, set(), procedure, only, options.most_epochs)
    lab.open()
    return lab


def save_figure(lab: Lab, label: str, kinds: Sequence[str] = ("png",)) -> Path:
    """Draw a figure, save it in one or more formats, and return the path to the first file."""
    drawing = FIGURES[label].drawn(lab)
    for kind in kinds:
        content = io.BytesIO()
        with style.context(PAPER):
            drawing.savefig(content, format=kind, dpi=DPI[kind])
        write_atomically(lab.out / f"{label}.{kind}", content.getvalue())
    return lab.out / f"{label}.{kinds[0]}"


def run(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = parser().parse_args(arguments)
    if options.list or not options.figures:
        print(
            "\n".join(f"{label:24}{(figure.draw.__doc__ or '').splitlines()[0]}" for label, figure in FIGURES.items())
        )
        print(f"{'machines':24}{' '.join(ALL_MODELS)}")
        return
    known = [*FIGURES, "machines"]
    labels = list(FIGURES) if options.figures == "all" else chosen("figures", options.figures, known)
    kinds = chosen("--format", options.format, list(DPI))
    lab, begun = lab_of(options), time.perf_counter()
    with warnings_as_lines(False):
        for label in labels:
            if label != "machines":
                print(save_figure(lab, label, kinds))
                continue
            for model in included(lab, list(ALL_MODELS.values())):
                lab.run(model)
                if len(model.hidden) == 1:
                    measure_solutions(lab, model)
    lab.say(f"{time.perf_counter() - begun:.0f} s on {lab.device}")
    if lab.missing:
        fail(f"some panels are missing: {'; '.join(sorted(lab.missing))}", BAD_INPUT)


if __name__ == "__main__":
    with one_line_errors():
        run(sys.argv[1:])
