"""Training in a run folder: repeat the call to go on where it was, to the bit."""

import hashlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tapmachine import __version__
from tapmachine.datasets import DataError, read
from tapmachine.distributed import wait_for_all, world
from tapmachine.files import FileError, data_description, read_tensors, rebuild
from tapmachine.machine import BoltzmannMachine
from tapmachine.precision import products_in
from tapmachine.recipes import NewMachine, bytes_scaled_beyond, make_machine, make_trainer, prepare_rows
from tapmachine.rows_on_disk import RowsOnDisk
from tapmachine.runs import RunError, RunFolder, RunWarning
from tapmachine.settings import Settings, SettingsError, check_names, of_run
from tapmachine.training import Monitor, PretrainingTrainer, Stopped, Trainer, TrainingState
from tapmachine.training.data import Rows, held_in_memory
from tapmachine.training.report import Reporter

Say = Callable[[str], None]
SomeRows = TypeVar("SomeRows", bound=Rows)


class StoppedRun(RuntimeError):  # noqa: N818
    """A run that a signal has stopped; it is saved, and goes on when it is asked for again."""


@dataclass(frozen=True)
class FinishedRun:
    """A run after its last epoch.

    Attributes:
        machine: that was trained.
        records: of all epochs.
        rows: that it was trained on.
        resumed_at: the epoch at which this call went on; 0 if it began.
    """

    machine: BoltzmannMachine
    records: list[dict[str, Any]]
    rows: Rows
    resumed_at: int


@dataclass(frozen=True)
class _Data(Generic[SomeRows]):
    """Rows to train on and those held out, with a digest of all as they were read."""

    name: str
    image_shape: tuple[int, int] | None
    digest: str
    train: SomeRows
    held_out: SomeRows | None
    scale_beyond: int | None  # of `datasets.read`, for other files that are to mean the same
    names: tuple[str, ...] | None  # of columns
    notes: tuple[str, ...]  # what was done to the rows

    def description(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n_rows": len(self.train),
            "image_shape": self.image_shape,
            "sha256": self.digest,
            "scale_beyond": self.scale_beyond,
        }

    def in_memory(self) -> "_Data[Tensor]":
        """The same with tensors; of rows on disk, some."""
        train = held_in_memory(self.train)
        held_out = None if self.held_out is None else held_in_memory(self.held_out)
        if len(train) < len(self.train):
            warnings.warn(
                f"{self.name}: does not fit into memory; {len(train)} of its {len(self.train)} rows are looked at, at "
                "even distances",
                RunWarning,
                stacklevel=3,
            )
        return _Data(
            self.name, self.image_shape, self.digest, train, held_out, self.scale_beyond, self.names, self.notes
        )


def run_training(
    settings: Settings,
    folder: str | Path,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
    say: Say = lambda line: None,
) -> FinishedRun:
    """Trains as the settings say, in a folder; or goes on, if it was begun there.

    Args:
        settings: of the run. In a folder that has some, they must be the same.
        folder: of the run.
        device: to train on.
        progress: as for `fit`.
        say: what to do with a line on what happens.

    Raises:
        RunError: if the folder is another run's, or is in use.
    """
    if settings.products != "float32" and torch.device(device).type == "cpu":
        raise ValueError(
            f"products in {settings.products} are for a GPU, and this is a CPU; leave --products out, or let a run "
            "that has it go on where there is one"
        )
    run = RunFolder(folder)
    _check_same(run, settings)
    data = _read_data_for(run, settings)
    for note in data.notes:
        say(note)
    with named(settings.data):
        new = make_machine(settings, data.train, data.held_out)
        new.machine.to(device)
        monitor = Monitor(every=settings.measure_every, scale=new.scale, shift=new.shift)
        trainer = make_trainer(settings, new, data.train, data.held_out, monitor)
    say(f"visible units {new.why}")
    first = world().leads  # of several processes one writes, and all train
    with run if first else nullcontext():  # nobody else writes to it from now on
        _check_same(run, settings)
        resumed_at = _resume(run, trainer, data.digest, settings.digest(), say)
        wait_for_all()  # before what they have read is written anew
        if first:
            run.write_settings(settings.as_json())
            run.forget_records_after(resumed_at)
        records = run.path / "metrics.jsonl" if first else None
        with (
            Reporter(records, progress if first else False, settings.all_epochs, finished=resumed_at) as report,
            _noted(run, first, resumed_at),
            _stopped_by_signals(trainer) as signals,
            products_in(settings.products),
        ):
            while trainer.finished < settings.all_epochs:
                try:
                    report(trainer.epoch())
                except Stopped:
                    _save(run, trainer, new, settings, data)
                    raise StoppedRun(
                        f"{run.path}: stopped by {' and '.join(signals) or 'another process'} in epoch "
                        f"{trainer.finished + 1}; all is saved, and the same command goes on from there"
                    ) from None
                _save(run, trainer, new, settings, data)
        if resumed_at >= settings.all_epochs:  # nothing was left to do; but a file may be missing
            _save(run, trainer, new, settings, data)
        wait_for_all()
        return FinishedRun(new.in_units_of_data(), run.records(), data.train, resumed_at)


@contextmanager
def _noted(run: RunFolder, first: bool, resumed_at: int) -> Iterator[None]:
    """Lets the run's log say how it went."""
    note = run.note if first else lambda *_, **__: None
    note("goes on" if resumed_at else "begun", epoch=resumed_at, version=__version__, torch=torch.__version__)
    try:
        yield
    except StoppedRun as stop:
        note("stopped", why=str(stop))
        raise
    except BaseException as error:
        note("failed", error=type(error).__name__, why=str(error))
        raise
    note("finished")


@contextmanager
def _stopped_by_signals(trainer: Trainer | PretrainingTrainer) -> Iterator[list[str]]:
    """Lets a training stop at the next batch, and be saved, when a cluster announces that its time is over."""
    seen: list[str] = []

    def ask(number: int, frame: object) -> None:
        seen.append(signal.Signals(number).name)
        trainer.stopping = True

    if threading.current_thread() is not threading.main_thread():  # only that one may listen
        yield seen
        return
    before = {name: signal.signal(name, ask) for name in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield seen
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def named(source: str) -> Iterator[None]:
    """Errors about data that say which data."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{source}: {error}") from None


def read_data(settings: Settings, **options: Any) -> _Data[Rows]:
    """The rows to train on, and those held out; with options of `datasets.read`."""
    options = {"scale_beyond": bytes_scaled_beyond(settings)} | options
    source = read(settings.data, **options)
    with named(settings.data):
        x = prepare_rows(settings, source.rows)
    names = None if source.layout is None else source.layout.column_names()
    found = _Data[Rows](
        source.name, source.image_shape, source.digest(), x, None, source.scale_beyond, names, source.notes
    )
    if settings.validation is None:
        return found
    if isinstance(settings.validation, str):
        other = read(settings.validation, **options | {"scale_beyond": source.scale_beyond})
        with named(settings.validation):
            held_out = prepare_rows(settings, other.rows)
            if held_out.shape[1] != x.shape[1]:
                raise ValueError(f"has {held_out.shape[1]} columns, where {settings.data} has {x.shape[1]}")
        both = hashlib.sha256((found.digest + other.digest()).encode()).hexdigest()
        return replace(found, digest=both, held_out=held_out, notes=found.notes + other.notes)
    n_train = len(x) - round(settings.validation * len(x))
    if not 0 < n_train < len(x):
        raise SettingsError(f"validation is {settings.validation}; of {len(x)} rows that leaves none on one side")
    return replace(found, train=_between(x, 0, n_train), held_out=_between(x, n_train, len(x)))


def _between(x: Rows, first: int, last: int) -> Rows:
    return x.between(first, last) if isinstance(x, RowsOnDisk) else x[first:last]


def settings_of(run: RunFolder) -> Settings:
    """What a run was asked for."""
    try:
        return Settings(**check_names(of_run(run.settings() or {}), str(run.path / "settings.json")))
    except TypeError as error:
        raise RunError(f"{run.path / 'settings.json'}: {error}") from None


def scale_of_bytes(run: RunFolder) -> int | None:
    """The `scale_beyond` of `datasets.read` with which bytes of other files mean what they meant in the training."""
    found: int | None = data_description(run.machine_path).get("scale_beyond", bytes_scaled_beyond(settings_of(run)))
    return found


def _read_data_for(run: RunFolder, settings: Settings) -> _Data[Rows]:
    """The data as a run reads them: those of the first versions scaled images alone, and kept every column."""
    data = read_data(settings)
    origin: dict[str, Any] = {}
    with suppress(FileError):  # there is none yet, or it is damaged and will be written again
        origin = data_description(run.machine_path)
    if "scale_beyond" not in origin and origin.get("sha256", data.digest) != data.digest:
        for beyond in (1, None):
            with suppress(ValueError):  # what is amiss with them is said of the data as they are read now
                before = read_data(settings, scale_beyond=beyond, keep_index=True)
                if before.digest == origin["sha256"]:
                    return before
    return data


def read_data_of(run: RunFolder) -> _Data[Tensor]:
    """The data of a run, if they are still those that it was trained on; in memory, those on disk in part."""
    settings = settings_of(run)
    data = _read_data_for(run, settings)
    if data.digest != data_description(run.machine_path).get("sha256"):
        raise RunError(f"{settings.data}: has changed since {run.path} was trained on it")
    return data.in_memory()


def machine_of(run: RunFolder, epoch: int | None = None, device: torch.device | str = "cpu") -> BoltzmannMachine:
    """The machine of a run at its last checkpoint, or at an epoch that was kept.

    Raises:
        RunError: if what is in its place is the machine of another run or of another epoch.
        FileError: if it cannot be read.
    """
    path = run.machine_path if epoch is None else run.machine_at(epoch)
    last = run.last_epoch() or 0  # before the machine, which is written first: a run that goes on may save in between
    tensors, description = read_tensors(path, "machine")
    origin = description.get("data", {})
    if "run" in origin:  # the first versions left it out
        if origin["run"] != settings_of(run).digest():
            raise RunError(f"{path}: is the machine of a run with other settings than those in {run.path}")
        # The machine is written before the checkpoint, and may be ahead of it after a crash.
        if origin["epoch"] != epoch if epoch is not None else origin["epoch"] < last:
            raise RunError(
                f"{path}: is the machine of epoch {origin['epoch']}, not of {last if epoch is None else epoch}"
            )
    return rebuild(path, tensors, description).to(device=device)


def _check_same(run: RunFolder, settings: Settings) -> None:
    others = run.others()
    if others:
        raise RunError(f"{run.path}: is no run, and holds other things, such as {others[0]}; choose another folder")
    changes = [] if run.settings() is None else settings.changes_from(settings_of(run))
    if changes:
        raise RunError(f"{run.path}: is a run with other settings: {'; '.join(changes)}; choose another folder")


def _resume(run: RunFolder, trainer: Trainer | PretrainingTrainer, data: str, settings: str, say: Say) -> int:
    """Takes up the last checkpoint, if it is of these data and settings, by their digests; its epoch."""
    found = run.last_checkpoint()
    if found is None:
        return 0
    epoch, tensors, values = found
    if values["data"] != data:
        raise RunError(f"{run.path}: the data have changed since this run began; choose another folder")
    if values.get("settings", settings) != settings:  # the first versions left them out
        raise RunError(f"{run.path}: its checkpoint is of a run with other settings; nothing was changed")
    try:
        trainer.restore(TrainingState(tensors, values["trainer"]))
    except (KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"{run.path}: its checkpoint does not fit; another version may have written it: {reason}"
        ) from None
    done = epoch >= trainer.epochs
    say(f"{run.path}: is finished, after {epoch} epochs" if done else f"{run.path}: goes on after epoch {epoch}")
    return epoch


def _save(
    run: RunFolder, trainer: Trainer | PretrainingTrainer, new: NewMachine, settings: Settings, data: _Data[Rows]
) -> None:
    epoch, last = trainer.finished, trainer.finished >= settings.all_epochs
    origin = data.description() | {"run": settings.digest(), "epoch": epoch}
    if settings.keeps(epoch) and world().leads and trainer.begun is None:
        run.save_machine(new.in_units_of_data(), origin, epoch)
    partial = trainer.begun is not None
    if partial or last or epoch % settings.save_every == 0:
        tensors, values = trainer.state()
        if not world().leads:
            return
        run.save_machine(new.in_units_of_data(), origin)
        run.checkpoint(epoch, tensors, {"trainer": values, "data": data.digest, "settings": settings.digest()}, partial)
