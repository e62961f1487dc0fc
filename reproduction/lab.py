"""Directory of a reproduction, which contains trained machines, tables and figures. Existing files are reused."""

import csv
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reproduction.models import BINARY, FACES, Model, quick
from reproduction.procedure import Procedure
from reproduction.style import figure_style
from reproduction.training import prepared_for
from tapmachine.data.errors import MissingDataError, RunError, TrainingWarning
from tapmachine.data.sources import digit_labels, mnist_labels, read
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import write_atomically
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import initial_machine, run_training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = float | int | str
Row = dict[str, Value]
DPI = {"png": 200, "pdf": 400, "svg": 400}  # for vector graphics, the resolution of rasterized parts
PARTS = "parts/"  # prefix of the parts of tables; each part is saved when it is complete
MNIST_FILES = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
FACES_FILE = "cbcl_faces.npz"


@dataclass(frozen=True)
class Lab:
    """Directory of a reproduction. Existing machines, tables and figures are reused.

    Attributes:
        out: Path to the directory.
        quick: Whether to run the small version on scikit-learn's digits.
        data: Directory with the files of MNIST and the CBCL faces (default: None, MNIST is downloaded).
        device: Device for training and inference.
        seed: Random seed of all training runs.
        say: Callback that receives progress messages.
        missing: Descriptions of data that were requested but not found.
        procedure: Options for training and for the solver.
        only: Names of the models to include (default: all).
        most_epochs: Maximum number of epochs per training run (default: no limit).
        beside: Directory of another reproduction, whose claims are shown for comparison.
    """

    out: Path
    quick: bool = False
    data: Path | None = None
    device: str = "cpu"
    seed: int = 0
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)
    missing: set[str] = field(default_factory=set, compare=False)
    procedure: Procedure = field(default_factory=Procedure)
    only: frozenset[str] = frozenset()
    most_epochs: int | None = None
    beside: Path | None = field(default=None, compare=False)

    def open(self) -> "Lab":
        """Create the directory.

        Raises:
            RunError: If the directory belongs to a reproduction with other options, or contains other files.
        """
        own: dict[str, int] = {"quick": self.quick, "seed": self.seed} | self.procedure.differences()
        path = self.out / "experiments.json"
        if path.exists():
            try:
                found = json.loads(path.read_text())
            except (OSError, ValueError):
                raise RunError(f"{path}: not a valid JSON file; choose another directory with --out") from None
            if found != own:
                raise RunError(
                    f"{self.out}: created with the options {found}, not {own}; choose another directory with --out"
                )
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out}: not empty, and not a reproduction directory; choose another --out directory")
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(own) + "\n").encode())
        return self

    # ----- data

    def sources(self, data: str) -> tuple[str, str]:
        """Return the sources of the training rows and of the held-out rows."""
        if self.quick:
            return "digits", "digits"
        if data == FACES:
            path = None if self.data is None else self.data / FACES_FILE
            if path is None or not path.is_file():
                raise MissingDataError(
                    f"{data} cannot be downloaded; put {FACES_FILE} (arrays train, test) into the --data directory"
                )
            return f"{path}:train", f"{path}:test"
        if self.data is None:
            return "mnist", "mnist-test"
        return str(self.data / MNIST_FILES[0]), str(self.data / MNIST_FILES[1])

    def has(self, data: str) -> bool:
        """Return whether a data set is available. If not, it is added to `missing`."""
        try:
            self.sources(data)
        except MissingDataError as error:
            self.missing.add(str(error))
            return False
        return True

    def includes(self, model: Model) -> bool:
        """Return whether a model is selected and its data are available."""
        return (not self.only or model.name in self.only) and self.has(model.data)

    def require(self, models: Sequence[Model]) -> None:
        """Raise RunError if `only` excludes all of these models."""
        if self.only and not self.only & {model.name for model in models}:
            names = ", ".join(model.name for model in models)
            raise RunError(f"--models excludes all machines of this figure; expected at least one of {names}")

    def rows(self, data: str) -> tuple[Tensor, Tensor]:
        """Return the training rows and the held-out rows. The quick version holds out a tenth of the digits."""
        train, test = (_rows(source, data == BINARY).to(self.device) for source in self.sources(data))
        return (train[:-180], test[-180:]) if self.quick else (train, test)

    def labels(self) -> Tensor:
        """Return the digit shown by each training row."""
        if self.quick:
            return torch.from_numpy(digit_labels())[:-180]
        return torch.from_numpy(mnist_labels(self.data and self.data / "train-labels-idx1-ubyte.gz"))

    def image_shape(self, data: str) -> tuple[int, int]:
        """Return the height and width of an image, in pixels."""
        return (8, 8) if self.quick else (19, 19) if data == FACES else (28, 28)

    # ----- machines

    def model(self, model: Model) -> Model:
        """Return a model with the sizes and epochs that are used in this directory."""
        own = quick(model) if self.quick else model
        if self.most_epochs is None:
            return own
        return replace(own, epochs=min(own.epochs, self.most_epochs), pretrain=min(own.pretrain, self.most_epochs))

    def settings(self, model: Model) -> Settings:
        """Return the training settings of a model."""
        own = self.model(model)
        train, test = self.sources(own.data)
        return own.settings(train, 0.1 if self.quick else test, self.seed, self.procedure, self.quick)

    def run(self, model: Model) -> RunFolder:
        """Return the run directory of a model, and complete its training first if necessary."""
        folder, settings = RunFolder(self.out / "models" / model.name), self.settings(model)
        if folder.last_epoch() != settings.all_epochs:
            self.say(f"training {model.name}: {settings.all_epochs} epochs")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)  # the experiments show the same problems
                begun = time.perf_counter()
                prepare = prepared_for(self.model(model), self.procedure)
                run_training(settings, folder.path, self.device, progress=False, prepare=prepare)
                self.say(f"{model.name}: {time.perf_counter() - begun:.0f} s")
        return folder

    def machine(self, model: Model, epoch: int | None = None) -> BoltzmannMachine:
        """Return the machine of a model at a kept epoch, at epoch 0, which runs do not save, or after the last one."""
        if epoch == 0:
            return initial_machine(self.settings(model), self.device, prepared_for(self.model(model), self.procedure))
        kept = Session(self.run(model).path, self.device).machines
        return kept[max(kept) if epoch is None else epoch]

    def epochs(self, model: Model) -> list[int]:
        """Return the saved epochs at which solutions are measured."""
        kept, asked = sorted(Session(self.run(model).path).machines), set(self.model(model).measured)
        return [0, *(epoch for epoch in kept if not asked or epoch in asked or epoch == kept[-1])]

    # ----- tables and figures

    def path(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.out / name

    def knows(self, *tables: str) -> bool:
        """Return whether all of these tables exist."""
        return all(self.path(f"{name}.csv").exists() for name in tables)

    def table(self, name: str, make: Callable[[], Iterable[Row]]) -> list[Row]:
        """Return the rows of a CSV file, which is created first if it does not exist."""
        path = self.path(f"{name}.csv")
        if not path.exists():
            if not name.startswith(PARTS):
                self.say(f"measuring {name}")
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _csv(list(make())).encode())
        with path.open(newline="") as file:
            return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]

    def parts(self, name: str, keys: Iterable[Value], make: Callable[[Any], Iterable[Row]]) -> list[Row]:
        """Return the rows of a CSV file that is computed in parts. After a crash, existing parts are reused."""
        found = self.knows(name)
        rows = [] if found else [row for key in keys for row in self.table(f"{PARTS}{name}-{key}", partial(make, key))]
        return self.table(name, lambda: rows)

    def save_figure(self, name: str, figure: "Figure", kinds: Sequence[str] = ("png",)) -> Path:
        """Save a figure in one or more formats, and return the path to the first file."""
        for kind in kinds:
            content = io.BytesIO()
            with figure_style():
                figure.savefig(content, format=kind, dpi=DPI[kind])
            write_atomically(self.path(f"{name}.{kind}"), content.getvalue())
        return self.path(f"{name}.{kinds[0]}")


@cache
def _rows(source: str, binary: bool) -> Tensor:
    values = torch.from_numpy(np.array(read(source).rows))
    return (values > 0.5).float() if binary else values.float()


def images_table(images: Tensor, **columns: Sequence[Value]) -> list[Row]:
    """Return one table row per image, with the given columns and the pixels rounded to three digits."""
    pixels = [f"p{number}" for number in range(images.shape[1])]
    values = images.double().cpu().tolist()
    return [
        {
            **{name: own[number] for name, own in columns.items()},
            **{p: f"{v:.3g}" for p, v in zip(pixels, row, strict=True)},
        }
        for number, row in enumerate(values)
    ]


def images_of(rows: Sequence[Row]) -> Tensor:
    """Return the images stored in rows of such a table, (N, pixels).

    The images must have the same size; other rows of the table may contain larger images.
    """
    pixels = [n for n, value in rows[0].items() if n[0] == "p" and n[1:].isdigit() and value != ""] if rows else []
    return torch.tensor([[float(row[name]) for name in pixels] for row in rows])


def nearest(epochs: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the existing epochs that are nearest to the requested epochs, without duplicates."""
    return sorted({min(epochs, key=lambda own: abs(own - epoch)) for epoch in wanted})


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    return text.getvalue()


def _value(cell: str) -> Value:
    try:
        return float(cell)
    except ValueError:
        return cell
