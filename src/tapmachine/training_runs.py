"""Training in a run folder: repeat the call to go on where it was, to the bit."""

import hashlib
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ExponentialLR

from tapmachine import __version__
from tapmachine.datasets import DataError, read
from tapmachine.distributed import wait_for_all, world
from tapmachine.files import data_description, read_tensors, rebuild
from tapmachine.machine import BoltzmannMachine
from tapmachine.precision import products_in
from tapmachine.recipes import NewMachine, bytes_scaled_beyond, make_machine, make_trainer, prepare_rows
from tapmachine.rows_on_disk import RowsOnDisk
from tapmachine.runs import MachineFile, RunError, RunFolder, RunWarning
from tapmachine.settings import ADJUSTABLE, Settings, SettingsError, check_names, of_run
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
        settings: of the run. In a folder that has some, they must be the same, except that `epochs` may be larger, and
            `measure_every`, `save_every` and `keep_every` may differ. With more epochs a run goes on, also if it was
            finished; the learning rate of epoch t is then initial·decay^(t/epochs) with the new number of epochs.
        folder: of the run.
        device: to train on.
        progress: as for `fit`.
        say: what to do with a line on what happens.

    Raises:
        RunError: if the folder is another run's, has more epochs, or is in use.
    """
    if settings.products != "float32" and torch.device(device).type == "cpu":
        raise ValueError(
            f"products in {settings.products} are for a GPU, and this is a CPU; leave --products out, or let a run "
            "that has it go on where there is one"
        )
    run, asked = RunFolder(folder), settings
    settings = _for_run(run, settings)
    if settings.pretrain != asked.pretrain:
        say(f"{run.path}: pretraining stays at {settings.pretrain} epochs for each layer")
    data = read_data(settings)
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
        _for_run(run, settings)
        resumed_at = _resume(run, trainer, data.digest, settings, say)
        digests, changes = _digests_of(run), _changes(run, settings)
        wait_for_all()  # before what they have read is written anew
        if first:
            # From here on a run that was made longer is one of that length: its checkpoints and machines so far are
            # known by the digests of earlier settings, and a kill before the next checkpoint repeats what was done.
            run.write_settings(settings.as_json(), [digest for digest in digests if digest != settings.digest()])
            if changes:
                run.note("settings changed", epoch=resumed_at, changes=list(changes.values()))
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


def read_data(settings: Settings) -> _Data[Rows]:
    """The rows to train on, and those held out."""
    return _read_data(settings, bytes_scaled_beyond(settings))


def _read_data(settings: Settings, scale_beyond: int | None) -> _Data[Rows]:
    """The same, with bytes scaled as by `datasets.read`."""
    source = read(settings.data, scale_beyond=scale_beyond)
    with named(settings.data):
        x = prepare_rows(settings, source.rows)
    names = None if source.layout is None else source.layout.column_names()
    found = _Data[Rows](
        source.name, source.image_shape, source.digest(), x, None, source.scale_beyond, names, source.notes
    )
    if settings.validation is None:
        return found
    if isinstance(settings.validation, str):
        other = read(settings.validation, scale_beyond=source.scale_beyond)
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


def read_data_of(run: RunFolder) -> _Data[Tensor]:
    """The data of a run, if they are still those that it was trained on; in memory, those on disk in part."""
    if isinstance(run, MachineFile):
        raise RunError(f"{run.path}: is the file of a machine, which has no data")
    settings = settings_of(run)
    data = read_data(settings)
    if data.digest != data_description(run.machine_path).get("sha256"):
        raise RunError(f"{settings.data}: has changed since {run.path} was trained on it")
    return data.in_memory()


def data_for(run: RunFolder, source: str | None = None) -> _Data[Tensor]:
    """Other data, prepared as those of the run; those of the run, if no source is given."""
    if source is None:
        try:
            return read_data_of(run)
        except RunError as error:
            raise RunError(f"{error}; use --data FILE") from None
    settings = replace(settings_of(run), data=source, validation=None)
    return _read_data(settings, scale_of_bytes(run)).in_memory()


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
        if origin["run"] not in _digests_of(run):
            raise RunError(f"{path}: is the machine of a run with other settings than those in {run.path}")
        # The machine is written before the checkpoint, and may be ahead of it after a crash.
        if origin["epoch"] != epoch if epoch is not None else origin["epoch"] < last:
            raise RunError(
                f"{path}: is the machine of epoch {origin['epoch']}, not of {last if epoch is None else epoch}"
            )
    return rebuild(path, tensors, description).to(device=device)


def _digests_of(run: RunFolder) -> list[str]:
    """Of the settings that a run has and had; nothing in a new folder."""
    return [] if run.settings() is None else [*run.earlier_digests(), settings_of(run).digest()]


def _changes(run: RunFolder, settings: Settings) -> dict[str, str]:
    """What differs from the settings of the run, if it has some, in words."""
    return {} if run.settings() is None else settings.changes_from(settings_of(run))


def _for_run(run: RunFolder, settings: Settings) -> Settings:
    """The settings with which a run is begun or goes on; a RunError if it was begun with others."""
    others = run.others()
    if others:
        raise RunError(f"{run.path}: is no run, and holds other things, such as {others[0]}; choose another folder")
    if run.settings() is None:
        return settings
    before = settings_of(run)
    settings = settings.continuing(before)
    changes = _changes(run, settings)
    fixed = [words for name, words in changes.items() if name not in ADJUSTABLE]
    if fixed:
        raise RunError(f"{run.path}: is a run with other settings: {'; '.join(fixed)}; choose another folder")
    if settings.epochs < before.epochs:
        raise RunError(
            f"{run.path}: {changes['epochs']}; the number of epochs can only be raised (epoch {run.last_epoch() or 0} "
            "is done)"
        )
    return settings


def _resume(run: RunFolder, trainer: Trainer | PretrainingTrainer, data: str, settings: Settings, say: Say) -> int:
    """Takes up the last checkpoint, if it is of these data and this run, by their digests; its epoch."""
    found = run.last_checkpoint()
    changes = _changes(run, settings)
    for name, words in changes.items():
        if name != "epochs" or found is None:
            say(f"{run.path}: {words}")
    if found is None:
        return 0
    epoch, tensors, values = found
    if values["data"] != data:
        raise RunError(f"{run.path}: the data have changed since this run began; choose another folder")
    known = [*_digests_of(run), settings.digest()]
    if values.get("settings", known[-1]) not in known:  # the first versions left them out
        raise RunError(f"{run.path}: its checkpoint is of a run with other settings; nothing was changed")
    try:
        trainer.restore(TrainingState(tensors, values["trainer"]))
    except (KeyError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"{run.path}: its checkpoint does not fit; another version may have written it: {reason}"
        ) from None
    _reschedule(trainer, settings)
    if "epochs" in changes:
        rate = "" if settings.decay == 1 else f"; the learning rate now falls over {settings.epochs} epochs"
        say(f"{run.path}: continuing from epoch {epoch} to {trainer.epochs}{rate}")
    elif epoch >= trainer.epochs:
        say(f"{run.path}: is finished, after {epoch} epochs")
    else:
        say(f"{run.path}: goes on after epoch {epoch}")
    return epoch


def _reschedule(trainer: Trainer | PretrainingTrainer, settings: Settings) -> None:
    """Lets the learning rate of a checkpoint fall over as many epochs as there are now, if those have become more.

    The rate of epoch t is initial·decay^(t/epochs), times what divergences have cut. It depends on the checkpoint and
    the settings only: a run that was made longer comes to the same bits, however often it is killed afterwards.
    """
    now = trainer.trainer if isinstance(trainer, PretrainingTrainer) else trainer
    if now is None or not isinstance(now.scheduler, ExponentialLR):
        return
    gamma = settings.decay ** (1 / max(1, now.epochs))
    if math.isclose(now.scheduler.gamma, gamma, rel_tol=1e-12):  # as it was
        return
    now.scheduler.gamma = gamma
    rates = [float(base) * gamma**now.finished for base in now.scheduler.base_lrs]  # which divergences have cut
    for group, rate in zip(now.optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):  # a captured step reads the tensor that is there
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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
