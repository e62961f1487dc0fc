"""The data of runs: those to train on, those held out, and others prepared like them."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from tapmachine.data.errors import DataError, RunError, RunWarning, SettingsError
from tapmachine.data.on_disk import RowsOnDisk
from tapmachine.data.rows import Rows, held_in_memory
from tapmachine.data.sources import read
from tapmachine.machine.files import data_description
from tapmachine.runs.build import bytes_scaled_beyond, prepare_rows
from tapmachine.runs.folder import MachineFile, RunFolder
from tapmachine.runs.settings import Settings, check_names

SomeRows = TypeVar("SomeRows", bound=Rows)


@dataclass(frozen=True)
class RunData(Generic[SomeRows]):
    """Training rows and held-out rows, with a digest of both as they were read.

    Attributes:
        name: Name of the data set.
        image_shape: Height and width, if the rows are images.
        digest: SHA-256 of the rows.
        train: Rows to train on.
        held_out: Rows to score beside them.
        scale_beyond: As for `data.sources.read`, so that other files are scaled in the same way.
        names: Names of the columns.
        notes: What was done to the rows.
    """

    name: str
    image_shape: tuple[int, int] | None
    digest: str
    train: SomeRows
    held_out: SomeRows | None
    scale_beyond: int | None
    names: tuple[str, ...] | None
    notes: tuple[str, ...]

    def description(self) -> dict[str, Any]:
        """What is saved of them with a machine."""
        return {
            "name": self.name,
            "n_rows": len(self.train),
            "image_shape": self.image_shape,
            "sha256": self.digest,
            "scale_beyond": self.scale_beyond,
        }

    def in_memory(self) -> "RunData[Tensor]":
        """The same with tensors; of rows on disk, as many as fit into memory."""
        train = held_in_memory(self.train)
        held_out = None if self.held_out is None else held_in_memory(self.held_out)
        if len(train) < len(self.train):
            warnings.warn(
                f"{self.name}: does not fit into memory; {len(train)} of its {len(self.train)} rows are used, evenly "
                "spaced",
                RunWarning,
                stacklevel=3,
            )
        return RunData(
            self.name, self.image_shape, self.digest, train, held_out, self.scale_beyond, self.names, self.notes
        )


@contextmanager
def named(source: str) -> Iterator[None]:
    """Errors about data start with the name of the data."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{source}: {error}") from None


def read_data(settings: Settings) -> RunData[Rows]:
    """The rows to train on, and those held out."""
    return _read_data(settings, bytes_scaled_beyond(settings))


def _read_data(settings: Settings, scale_beyond: int | None) -> RunData[Rows]:
    """As `read_data`, with the `scale_beyond` of `data.sources.read`."""
    source = read(settings.data, scale_beyond=scale_beyond)
    with named(settings.data):
        x = prepare_rows(settings, source.rows)
    names = None if source.layout is None else source.layout.column_names()
    data = RunData[Rows](
        source.name, source.image_shape, source.digest(), x, None, source.scale_beyond, names, source.notes
    )
    if settings.validation is None:
        return data
    if isinstance(settings.validation, str):
        other = read(settings.validation, scale_beyond=source.scale_beyond)
        with named(settings.validation):
            held_out = prepare_rows(settings, other.rows)
            if held_out.shape[1] != x.shape[1]:
                raise ValueError(f"has {held_out.shape[1]} columns, where {settings.data} has {x.shape[1]}")
        both = hashlib.sha256((data.digest + other.digest()).encode()).hexdigest()
        return replace(data, digest=both, held_out=held_out, notes=data.notes + other.notes)
    n_train = len(x) - round(settings.validation * len(x))
    if not 0 < n_train < len(x):
        raise SettingsError(f"validation is {settings.validation}; of {len(x)} rows that leaves none on one side")
    return replace(data, train=_between(x, 0, n_train), held_out=_between(x, n_train, len(x)))


def _between(x: Rows, first: int, last: int) -> Rows:
    return x.between(first, last) if isinstance(x, RowsOnDisk) else x[first:last]


def settings_of(run: RunFolder) -> Settings:
    """The settings of a run."""
    try:
        return Settings(**check_names(run.settings() or {}, str(run.path / "settings.json")))
    except TypeError as error:
        raise RunError(f"{run.path / 'settings.json'}: {error}") from None


def scale_of_bytes(run: RunFolder) -> int | None:
    """The `scale_beyond` of `data.sources.read` that scales bytes of other files as in training."""
    usual = bytes_scaled_beyond(settings_of(run))
    scale_beyond: int | None = data_description(run.machine_path).get("scale_beyond", usual)
    return scale_beyond


def read_data_of(run: RunFolder) -> RunData[Tensor]:
    """The data of a run, in memory; a RunError if they have changed since training."""
    if isinstance(run, MachineFile):
        raise RunError(f"{run.path}: is the file of a machine, which has no data")
    settings = settings_of(run)
    data = read_data(settings)
    if data.digest != data_description(run.machine_path).get("sha256"):
        raise RunError(f"{settings.data}: has changed since {run.path} was trained on it")
    return data.in_memory()


def data_for(run: RunFolder, source: str | None = None) -> RunData[Tensor]:
    """Data from a source, prepared like those of the run. Default: the data of the run."""
    if source is None:
        try:
            return read_data_of(run)
        except RunError as error:
            raise RunError(f"{error}; use --data FILE") from None
    settings = replace(settings_of(run), data=source, validation=None)
    return _read_data(settings, scale_of_bytes(run)).in_memory()
