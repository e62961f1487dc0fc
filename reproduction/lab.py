"""Directory of a reproduction, which contains trained machines, tables and figures. Existing files are reused."""

import csv
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.models import BINARY, FACES, VISIBLE, Model, quick
from reproduction.training import PRINTED_SWEEPS, Procedure, prepared
from tapmachine.data.errors import DataError, RunError, TrainingWarning
from tapmachine.data.files import write_atomically
from tapmachine.data.sources import digit_labels, mnist_labels, read
from tapmachine.machine import BoltzmannMachine
from tapmachine.runs.data import read_data
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import Prepare, run_training

Value = float | int | str
Row = dict[str, Value]
PARTS = "parts/"  # prefix of the parts of tables; each part is saved when it is complete
MNIST_FILES = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
FACES_FILE = "cbcl_faces.npz"


@dataclass(frozen=True)
class Lab:
    """Directory of a reproduction. Existing machines, tables and figures are reused."""

    out: Path
    quick: bool = False  # whether to run the small version on scikit-learn's digits
    data: Path | None = None  # directory with the files of MNIST and the CBCL faces (None: MNIST is downloaded)
    device: str = "cpu"
    seed: int = 0  # of all training runs
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)
    missing: set[str] = field(default_factory=set, compare=False)  # data that were requested but not found
    procedure: Procedure = field(default_factory=Procedure)
    only: frozenset[str] = frozenset()  # names of the models to include (default: all)
    most_epochs: int | None = None  # maximum per training run

    def open(self) -> None:
        """Create the directory, or raise a RunError if it has other options or contains other files."""
        path, own = self.out / "experiments.json", {"quick": self.quick, "seed": self.seed}
        own |= self.procedure.differences()
        if path.exists() and (found := json.loads(path.read_text())) != own:
            raise RunError(f"{self.out}: created with the options {found}, not {own}; choose another --out directory")
        if not path.exists() and self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out}: not empty, and not a reproduction directory; choose another --out directory")
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(own) + "\n").encode())

    # ----- data

    def sources(self, data: str) -> tuple[str, str]:
        """Return the sources of the training rows and of the held-out rows."""
        if self.quick:
            return "digits", "digits"
        if data == FACES:
            path = None if self.data is None else self.data / FACES_FILE
            if path is None or not path.is_file():
                raise DataError(
                    f"{data} cannot be downloaded; put {FACES_FILE} (arrays train, test) into the --data directory"
                )
            return f"{path}:train", f"{path}:test"
        if self.data is None:
            return "mnist", "mnist-test"
        return str(self.data / MNIST_FILES[0]), str(self.data / MNIST_FILES[1])

    def includes(self, model: Model) -> bool:
        """Return whether a model is selected and its data are available. Missing data are added to `missing`."""
        if self.only and model.name not in self.only:
            return False
        try:
            self.sources(model.data)
        except DataError as error:
            self.missing.add(str(error))
            return False
        return True

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
        own, most = quick(model) if self.quick else model, self.most_epochs
        return own if most is None else replace(own, epochs=min(own.epochs, most), pretrain=min(own.pretrain, most))

    def starts(self, model: Model) -> Tensor:
        """Return the starts of solutions: the first rows of the training data, as in the paper."""
        return self.rows(model.data)[0][: self.model(model).n_starts]

    def settings(self, model: Model) -> Settings:
        """Return the training settings of a model."""
        own, (train, test) = self.model(model), self.sources(model.data)
        n_sweeps = PRINTED_SWEEPS[self.quick] if self.procedure.printed_iteration and not own.sampled else own.sweeps
        same = {name: value for name, value in vars(own).items() if name in Settings.__dataclass_fields__}
        return Settings(
            validation=0.1 if self.quick else test,
            binarize=0.5 if own.data == BINARY else None,
            visible=VISIBLE[own.data],
            interval=None if own.data == BINARY else (0.0, 1.0),
            objective="cd" if own.sampled else "tap",
            n_sweeps=n_sweeps,
            n_particles=None if own.sampled else own.particles,
            centered=None if self.procedure.centered else False,
            averaged=False,
            early_stopping=False,
            seed=self.seed,
            measure_every=5,
            save_every=5,
            **same | {"data": train},
        )

    def preparation(self, model: Model) -> Prepare:
        """Return the function that creates the machine of a model and its trainer."""
        return partial(prepared, self.model(model), self.procedure)

    def run(self, model: Model) -> RunFolder:
        """Return the run directory of a model, and complete its training first if necessary."""
        folder, settings = RunFolder(self.out / "models" / model.name), self.settings(model)
        if folder.last_epoch() != settings.all_epochs:
            self.say(f"training {model.name}: {settings.all_epochs} epochs")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)  # the experiments show the same problems
                begun = time.perf_counter()
                run_training(settings, folder.path, self.device, progress=False, prepare=self.preparation(model))
                self.say(f"{model.name}: {time.perf_counter() - begun:.0f} s")
        return folder

    def machine(self, model: Model, epoch: int | None = None) -> BoltzmannMachine:
        """Return the machine of a model at a kept epoch, at epoch 0, which runs do not save, or after the last one."""
        if epoch == 0:
            settings = self.settings(model)
            return self.preparation(model)(settings, read_data(settings), self.device)[1].in_units_of_data()
        kept = Session(self.run(model).path, self.device).machines
        return kept[max(kept) if epoch is None else epoch]

    def epochs(self, model: Model) -> list[int]:
        """Return the saved epochs at which solutions are measured."""
        kept, asked = sorted(Session(self.run(model).path).machines), set(self.model(model).measured)
        return [0, *(epoch for epoch in kept if not asked or epoch in asked or epoch == kept[-1])]

    # ----- tables

    def knows(self, *tables: str) -> bool:
        """Return whether all of these tables exist."""
        return all((self.out / f"{name}.csv").exists() for name in tables)

    def table(self, name: str, make: Callable[[], Iterable[Row]]) -> list[Row]:
        """Return the rows of a CSV file, which is created first if it does not exist."""
        path = self.out / f"{name}.csv"
        if not path.exists():
            self.say(f"measuring {name}")
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _csv(list(make())).encode())
        with path.open(newline="") as file:
            return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def table(name: str) -> Callable[[Callable[[Lab], Iterable[Row]]], Callable[[Lab], list[Row]]]:
    """Decorate a function that computes the rows of a table, so that it reads them from the file if that exists."""

    def decorated(make: Callable[[Lab], Iterable[Row]]) -> Callable[[Lab], list[Row]]:
        return wraps(make)(lambda lab: lab.table(name, lambda: make(lab)))

    return decorated


def where(rows: Sequence[Row], **values: Any) -> list[Row]:
    """Return the rows of a table with the given values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def column(rows: Sequence[Row], name: str) -> list[float]:
    """Return the numbers in a column of a table, omitting empty cells."""
    return [float(row[name]) for row in rows if row.get(name, "") != ""]


def curve(rows: Sequence[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return two columns of a table, omitting rows in which the second one is empty."""
    rows = [row for row in rows if row.get(y, "") != ""]
    return column(rows, x), column(rows, y)


@cache
def _rows(source: str, binary: bool) -> Tensor:
    values = torch.from_numpy(np.array(read(source).rows))
    return (values > 0.5).float() if binary else values.float()


def images_table(images: Tensor, **columns: Sequence[Value]) -> list[Row]:
    """Return one table row per image, with the given columns and the pixels rounded to three digits."""
    values = images.double().cpu().tolist()
    return [
        {name: own[number] for name, own in columns.items()} | {f"p{n}": f"{v:.3g}" for n, v in enumerate(row)}
        for number, row in enumerate(values)
    ]


def images_of(rows: Sequence[Row]) -> Tensor:
    """Return the images stored in rows of such a table, (N, pixels), whose other rows may contain larger images."""
    pixels = [n for n, value in rows[0].items() if n[0] == "p" and n[1:].isdigit() and value != ""] if rows else []
    return torch.tensor([[float(row[name]) for name in pixels] for row in rows])


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
