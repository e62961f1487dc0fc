"""Run directories and machine files that are opened for use. Each file is read once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapmachine.data.errors import FileError, RunError
from tapmachine.data.rows import LazyRows
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import read_tensors, rebuild
from tapmachine.runs.data import RunData, bytes_scaled_beyond, codec_of, named, read_data, read_prepared
from tapmachine.runs.folder import Record, RunFolder
from tapmachine.runs.settings import Settings
from tapmachine.tables.codec import EncodedData, read_rows
from tapmachine.tables.schema import Schema
from tapmachine.units.registry import UNIT_TYPES, word_for


class Session:
    """Run directory or machine file, whose settings and machine are read once.

    Args:
        path: Path of a run directory, or of a file written by `save`.
        device: Device of the machine (default: "cpu").

    Attributes:
        path: Path of the run directory or machine file.
        run: Run directory, or None for a machine file, which has no data, records or kept machines.
        machine: Machine at the last checkpoint.
        settings: Settings of the run. Those of a machine file determine how data are prepared for the machine.
        description: Description of the data that is stored with the machine.
        epoch: Epoch of the last checkpoint, or of the machine file.
        codec: Conversion of rows of data to states of the visible units, and back.
        image_shape: Height and width of the rows; None if they are not images.

    Raises:
        RunError: If the path is not a run directory, or if no checkpoint has been saved yet.
        FileError: If the machine cannot be read.
    """

    def __init__(self, path: str | Path, device: torch.device | str = "cpu") -> None:
        self.path, self.device = Path(path), device
        self.run = None if self.path.is_file() else RunFolder(self.path)
        settings = None if self.run is None else self.run.settings()
        if self.run is not None and (settings is None or not self.run.machine_path.exists()):
            raise RunError(f"{path}: not a run directory, or no checkpoint has been saved yet")
        # The epoch is read before the machine, which is written first: the run may save a checkpoint in between.
        last = 0 if self.run is None else self.run.last_epoch() or 0
        self.machine, self.description = read_machine(self.run or self.path, None, device)
        self.settings = settings or _settings_of_file(self.path, self.machine)
        columns, schema = self.description.get("columns"), self.description.get("schema")
        try:
            self.epoch = int(self.description.get("epoch", 0)) if self.run is None else last
            self.codec = codec_of(self.settings, None if schema is None else Schema.from_dict(schema), columns)
            self.image_shape = self._image_shape()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise FileError(f"{path}: the description of the data is not valid: {error}") from None

    def _image_shape(self) -> tuple[int, int] | None:
        shape, n = self.description.get("image_shape"), self.machine.layers[0].n
        if shape is None:
            return None
        height, width = map(int, shape)
        if height * width != n:
            raise ValueError(f"images of {height} × {width} do not have {n} pixels")
        return height, width

    @property
    def machines(self) -> "KeptMachines":
        """Mapping from epochs to the kept machines and the machine at the last checkpoint."""
        return KeptMachines(self)

    def records(self) -> list[Record]:
        """Return the records of all epochs; an empty list for a machine file."""
        return [] if self.run is None else self.run.records()

    def data(self, source: str | None = None, gaps: bool = False) -> RunData[Tensor]:
        """Read data from a source (default: the data of the run) and prepare them as in training.

        Args:
            source: Named data set or path of a file.
            gaps: Whether to keep missing values, as in `RunData.in_memory`.

        Raises:
            RunError: If the data have changed since training, or if a machine file has no data.
        """
        if source is None:
            try:
                return self.training_data(gaps)
            except RunError as error:
                raise RunError(f"{error}; use --data FILE") from None
        settings = replace(self.settings, data=source, validation=None, weights=None)
        data = read_prepared(settings, self._scale_beyond(), self.codec.schema)
        with named(source):
            self._check_columns(data.names)
        return data.in_memory(gaps)

    def training_data(self, gaps: bool = False) -> RunData[Tensor]:
        """Read the data of the run, as in `data`."""
        if self.run is None:
            raise RunError(f"{self.path}: a machine file has no data")
        data = read_data(self.settings)
        if data.digest != self.description.get("sha256"):
            raise RunError(f"{self.settings.data}: the data have changed since {self.path} was trained")
        return data.in_memory(gaps)

    def example_rows(self, say: Callable[[str], None]) -> Tensor | None:
        """Return the training rows on the device of the machine, or None, with a message, if they cannot be read."""
        try:
            return self.training_data().train.to(self.machine.device)
        except ValueError as error:
            say(f"{error}; continuing without training rows")
            return None

    def read(
        self, source: str, states: bool = True, values: bool = True, optional: Sequence[str] = ()
    ) -> tuple[EncodedData, Iterator[Tensor]]:
        """Read rows to which the machine is applied, with NaN for missing values.

        Args:
            source: Named data set or path of a file.
            states: Whether the rows are states of the visible units, which are binarized as in training.
            values: Whether bytes are scaled as in training; counts are not scaled.
            optional: Columns of the table that may be missing.

        Returns:
            The data set, and an iterator over parts of its rows as visible states.
        """
        codec = self.codec if states else replace(self.codec, binarize=None)
        scale_beyond = self._scale_beyond() if values else None
        data = read_rows(source, self.codec.schema, gaps=True, optional=optional, scale_beyond=scale_beyond)
        if codec.binarize is not None:
            note = f"values above {codec.binarize:g} are set to 1 and all others to 0, as in training"
            data = replace(data, notes=(*data.notes, note))
        with named(source):
            self._check_columns(None if data.layout is None else data.layout.column_names())

        def parts() -> Iterator[Tensor]:
            rows = data.rows
            for part in (own for _, own in rows.parts()) if isinstance(rows, LazyRows) else (rows,):
                with named(source):
                    states = codec.rows(part)
                assert isinstance(states, Tensor)
                yield states

        return data, parts()

    def _scale_beyond(self) -> int | None:
        """Return the argument `scale_beyond` of `data.sources.read` that scales bytes as in training."""
        scale_beyond: int | None = self.description.get("scale_beyond", bytes_scaled_beyond(self.settings))
        return scale_beyond

    def _check_columns(self, names: Sequence[str] | None) -> None:
        """Raise a ValueError if column names differ from those of the training data."""
        known = self.codec.names
        if known is None or names is None or self.codec.schema is not None or len(known) != len(names):
            return  # the number of columns and schemas are checked elsewhere
        for place, (name, there) in enumerate(zip(names, known, strict=True)):
            if name != there:
                raise ValueError(f"column {place + 1} is {name!r}, but was {there!r} in training; reorder the columns")


class KeptMachines(Mapping[int, BoltzmannMachine]):
    """Mapping from epochs to the machines of a run, which are loaded on access.

    The mapping contains the kept machines and the machine at the last checkpoint.

    Args:
        session: Open run directory or machine file.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.kept = {} if session.run is None else session.run.kept_machines()
        self.epochs = sorted({session.epoch, *self.kept})

    def __getitem__(self, epoch: int) -> BoltzmannMachine:
        if epoch not in self.epochs:
            raise KeyError(epoch)
        session = self.session
        if session.run is None or epoch not in self.kept or epoch == session.description.get("epoch"):
            return session.machine
        return read_machine(session.run, epoch, session.device)[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)


def read_machine(
    run: RunFolder | Path, epoch: int | None = None, device: torch.device | str = "cpu"
) -> tuple[BoltzmannMachine, dict[str, Any]]:
    """Read a machine file, the machine at the last checkpoint of a run, or a machine that was kept at an epoch.

    Returns:
        The machine, and the description of the data that is stored with it.

    Raises:
        RunError: If the file contains the machine of another run or of another epoch.
        FileError: If the file cannot be read.
    """
    if isinstance(run, Path):
        tensors, description = read_tensors(run, "machine")
        return rebuild(run, tensors, description).to(device=device), description.get("data", {})
    path = run.machine_path if epoch is None else run.machine_at(epoch)
    last = run.last_epoch() or 0
    tensors, description = read_tensors(path, "machine")
    origin: dict[str, Any] = description.get("data", {})
    if origin.get("run") not in run.digests():
        raise RunError(f"{path}: the machine belongs to a run with settings different from those of {run.path}")
    if not isinstance(origin.get("epoch"), int):
        raise RunError(f"{path}: the description of the machine has no epoch")
    # The machine is written before the checkpoint, and may be ahead of it after a crash.
    if origin["epoch"] != epoch if epoch is not None else origin["epoch"] < last:
        raise RunError(f"{path}: machine of epoch {origin['epoch']}; expected epoch {last if epoch is None else epoch}")
    return rebuild(path, tensors, description).to(device=device), origin


def _settings_of_file(path: Path, machine: BoltzmannMachine) -> Settings:
    """Return the settings that determine how data are prepared for the machine in a file."""
    word = word_for(machine.layers[0])
    visible = word if word is not None and UNIT_TYPES[word].raw_bytes else "auto"
    dtype = str(machine.dtype).removeprefix("torch.")
    return Settings(str(path), visible=visible, dtype=dtype if dtype == "float64" else "float32")
