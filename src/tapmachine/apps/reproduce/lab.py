"""Where experiments happen: a folder with trained machines, tables and figures, each made once."""

import csv
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.style import figure_style
from tapmachine.apps.reproduce.models import BINARY, FACES, Model, quick
from tapmachine.apps.reproduce.procedure import Procedure
from tapmachine.data.errors import MissingDataError, RunError, TrainingWarning
from tapmachine.data.sources import digit_labels, mnist_labels, read
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import write_atomically
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.machines import KeptMachines
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import initial_machine, run_training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = float | int | str
Row = dict[str, Value]
DPI = {"png": 200, "pdf": 400, "svg": 400}  # of the parts of vector graphics that are pixels
PARTS = "parts/"  # of tables that take long: each is written when it is ready
MNIST_FILES = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
FACES_FILE = "cbcl_faces.npz"


@dataclass(frozen=True)
class Lab:
    """A folder of experiments. What is there already is not made again.

    Attributes:
        out: the folder.
        quick: whether on the embedded digits, in a minute.
        data: a folder with the files of MNIST and the CBCL faces; MNIST is downloaded without it.
        device: to work on.
        seed: of all trainings.
        say: what to do with a line on what happens.
        missing: what was asked for and is not at hand, in words.
        procedure: how machines are trained and solved.
        only: names of the models to look at; by default all.
        most_epochs: limit of the epochs of a training; by default none.
        beside: another folder of experiments, whose claims are shown beside these.
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
        """Makes the folder, or a RunError if it is that of other experiments."""
        own: dict[str, int] = {"quick": self.quick, "seed": self.seed} | self.procedure.differences()
        path = self.out / "experiments.json"
        if path.exists():
            try:
                found = json.loads(path.read_text())
            except (OSError, ValueError):
                raise RunError(f"{path}: cannot be read; choose another folder") from None
            if found != own:
                raise RunError(f"{self.out}: holds experiments with {found}, not {own}; choose another folder")
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out}: holds other things; choose another folder")
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(own) + "\n").encode())
        return self

    # ----- data

    def sources(self, data: str) -> tuple[str, str]:
        """Where rows to train on come from, and rows held out."""
        if self.quick:
            return "digits", "digits"
        if data == FACES:
            path = None if self.data is None else self.data / FACES_FILE
            if path is None or not path.is_file():
                raise MissingDataError(
                    f"{data} is not for download; put {FACES_FILE} (arrays train, test) into --data FOLDER"
                )
            return f"{path}:train", f"{path}:test"
        if self.data is None:
            return "mnist", "mnist-test"
        return str(self.data / MNIST_FILES[0]), str(self.data / MNIST_FILES[1])

    def has(self, data: str) -> bool:
        """Whether data are at hand; if not, they are noted as missing."""
        try:
            self.sources(data)
        except MissingDataError as error:
            self.missing.add(str(error))
            return False
        return True

    def includes(self, model: Model) -> bool:
        """Whether a model is looked at, and its data are at hand."""
        return (not self.only or model.name in self.only) and self.has(model.data)

    def require(self, models: Sequence[Model]) -> None:
        """Raise RunError if `only` excludes all of these models."""
        if self.only and not self.only & {model.name for model in models}:
            names = ", ".join(model.name for model in models)
            raise RunError(f"--models selects no machine of this figure; expected at least one of {names}")

    def rows(self, data: str) -> tuple[Tensor, Tensor]:
        """Rows to train on, and rows held out; of the quick form a tenth."""
        train, test = (_rows(source, data == BINARY).to(self.device) for source in self.sources(data))
        return (train[:-180], test[-180:]) if self.quick else (train, test)

    def labels(self) -> Tensor:
        """The digit that each row shows."""
        if self.quick:
            return torch.from_numpy(digit_labels())[:-180]
        return torch.from_numpy(mnist_labels(self.data and self.data / "train-labels-idx1-ubyte.gz"))

    def image_shape(self, data: str) -> tuple[int, int]:
        """Of a row, in pixels."""
        return (8, 8) if self.quick else (19, 19) if data == FACES else (28, 28)

    # ----- machines

    def model(self, model: Model) -> Model:
        """As it is trained here."""
        own = quick(model) if self.quick else model
        if self.most_epochs is None:
            return own
        return replace(own, epochs=min(own.epochs, self.most_epochs), pretrain=min(own.pretrain, self.most_epochs))

    def settings(self, model: Model) -> Settings:
        """Of a model's training."""
        own = self.model(model)
        train, test = self.sources(own.data)
        return own.settings(train, 0.1 if self.quick else test, self.seed, self.procedure, self.quick)

    def run(self, model: Model) -> RunFolder:
        """The folder of a model's training, which is finished, now if not before."""
        folder, settings = RunFolder(self.out / "models" / model.name), self.settings(model)
        if folder.last_epoch() != settings.all_epochs:
            self.say(f"training {model.name}: {settings.all_epochs} epochs")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)  # what the settings lead to is looked at
                begun = time.perf_counter()
                run_training(settings, folder.path, self.device, progress=False)
                self.say(f"{model.name}: {time.perf_counter() - begun:.0f} s")
        return folder

    def machines(self, model: Model) -> Mapping[int, BoltzmannMachine]:
        """Those that were kept, by epoch, the last, and the one that training started from."""
        return MachinesFromStart(self.run(model), self.device, self.settings(model))

    def machine(self, model: Model) -> BoltzmannMachine:
        """The last one."""
        machines = self.machines(model)
        return machines[max(machines)]

    def epochs(self, model: Model) -> list[int]:
        """Whose solutions are looked at."""
        kept, asked = sorted(self.machines(model)), set(self.model(model).measured)
        return [epoch for epoch in kept if not asked or epoch in asked or epoch in (0, kept[-1])]

    # ----- tables and figures

    def path(self, name: str) -> Path:
        """Of a file in the folder."""
        return self.out / name

    def knows(self, *tables: str) -> bool:
        """Whether tables are there."""
        return all(self.path(f"{name}.csv").exists() for name in tables)

    def table(self, name: str, make: Callable[[], Iterable[Row]]) -> list[Row]:
        """The rows of a CSV file, which is made first if it is not there."""
        path = self.path(f"{name}.csv")
        if not path.exists():
            if not name.startswith(PARTS):
                self.say(f"measuring {name}")
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _csv(list(make())).encode())
        with path.open(newline="") as file:
            return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]

    def parts(self, name: str, keys: Iterable[Value], make: Callable[[Any], Iterable[Row]]) -> list[Row]:
        """The rows of a CSV file that is made part by part; after a crash, the parts that are there are kept."""
        found = self.knows(name)
        rows = [] if found else [row for key in keys for row in self.table(f"{PARTS}{name}-{key}", partial(make, key))]
        return self.table(name, lambda: rows)

    def save_figure(self, name: str, figure: "Figure", kinds: Sequence[str] = ("png",)) -> Path:
        """Writes a figure, in one or several formats; the path of the first."""
        for kind in kinds:
            content = io.BytesIO()
            with figure_style():
                figure.savefig(content, format=kind, dpi=DPI[kind])
            write_atomically(self.path(f"{name}.{kind}"), content.getvalue())
        return self.path(f"{name}.{kinds[0]}")


class MachinesFromStart(KeptMachines):
    """The machines of a run, and at epoch 0 the one that it started from, which runs do not keep."""

    def __init__(self, run: RunFolder, device: str, settings: Settings) -> None:
        super().__init__(run, device)
        self.settings = settings
        self.epochs = [0, *self.epochs]

    def __getitem__(self, epoch: int) -> BoltzmannMachine:
        return initial_machine(self.settings, self.device) if epoch == 0 else super().__getitem__(epoch)


@cache
def _rows(source: str, binary: bool) -> Tensor:
    values = torch.from_numpy(np.array(read(source).rows))
    return (values > 0.5).float() if binary else values.float()


def images_table(images: Tensor, **columns: Sequence[Value]) -> list[Row]:
    """A row for each image, with what is said of it and its pixels to three digits."""
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
    """The images of such a table, (N, pixels): all of one size, where others in it may be larger."""
    pixels = [n for n, value in rows[0].items() if n[0] == "p" and n[1:].isdigit() and value != ""] if rows else []
    return torch.tensor([[float(row[name]) for name in pixels] for row in rows])


def nearest(epochs: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """For each epoch that is wanted the nearest that there is; each once."""
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
