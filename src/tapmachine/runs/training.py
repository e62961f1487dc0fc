"""Training in a run directory, with bit-identical results if an interrupted run is resumed."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ExponentialLR

from tapmachine import __version__
from tapmachine.accelerator.distributed import wait_for_all, world
from tapmachine.accelerator.precision import environment, usual_modes
from tapmachine.data.errors import RunError, RunWarning, Stopped, StoppedRun, plural, warn
from tapmachine.data.rows import Rows, has_gaps
from tapmachine.machine import BoltzmannMachine
from tapmachine.runs.data import RunData, named, read_data, repeat_rows
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.registry import make_objective
from tapmachine.runs.settings import ADJUSTABLE, Settings
from tapmachine.tables.machine import ScaledMachine, make_machine, make_training, warn_of_unused
from tapmachine.training import Monitor, Training, TrainingOptions
from tapmachine.training.gaps import check_columns
from tapmachine.training.loop import run_epochs
from tapmachine.training.monitor import Record
from tapmachine.training.state import TrainingState

Say = Callable[[str], None]
Prepared = tuple[Settings, ScaledMachine, Training]
Prepare = Callable[[Settings, RunData[Rows], torch.device | str], Prepared]


@dataclass(frozen=True)
class FinishedRun:
    """Result of a finished run.

    Attributes:
        machine: Trained machine.
        records: Records of all epochs.
        rows: Training rows.
        resumed_at: Epoch after which the run was continued, or 0 for a new run.
    """

    machine: BoltzmannMachine
    records: list[dict[str, Any]]
    rows: Rows
    resumed_at: int


@usual_modes()
def run_training(
    settings: Settings,
    folder: str | Path | RunFolder,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
    say: Say = lambda line: None,
    prepare: Prepare | None = None,
) -> FinishedRun:
    """Train a machine in a run directory, or continue a run.

    Args:
        settings: Settings of the run. A run can be continued only with the same settings, except that `epochs` may be
            larger, and `measure_every`, `save_every` and `keep_every` may differ. A larger number of epochs also
            continues a finished run. The learning rate of epoch t is then initial·decay^(t/epochs) with the new number
            of epochs.
        folder: Run directory, or its path.
        device: Device on which to train (default: "cpu").
        progress: Whether to show progress, as for `fit`.
        say: Callback that receives progress messages.
        prepare: Function that creates the machine and its trainer from the settings and the data (default: `prepared`).

    Returns:
        The trained machine, the records of all epochs, and the training rows.

    Raises:
        RunError: If the directory is in use, or if it contains a run with different settings or more epochs.
        StoppedRun: If a signal stops the run.
    """
    run, asked = folder if isinstance(folder, RunFolder) else RunFolder(folder), settings
    settings = _for_run(run, settings)
    if settings.pretrain != asked.pretrain:
        say(f"{run.path}: the number of pretraining epochs remains {settings.pretrain}")
    data = read_data(settings)
    for note in data.notes:
        say(note)
    settings, new, trainer = (prepare or prepared)(settings, data, device)
    say(f"visible units {new.why}")
    if new.is_fitted and run.settings() is None:
        warn_of_unused(asked)
    first = world().leads  # all processes train, but only the first one writes
    with run if first else nullcontext():  # locked
        _for_run(run, settings)
        resumed_at = _resume(run, trainer, data.digest, settings, say)
        digests, changes = run.digests(), _changes(run, settings)
        wait_for_all()  # all processes have read the settings before they are overwritten
        if first:
            # From now on, an extended run has the new number of epochs. Its existing checkpoints and machines are
            # identified by the digests of earlier settings. A run killed before the next checkpoint repeats this.
            run.write_settings(settings, [digest for digest in digests if digest != settings.digest()])
            if changes:
                run.note("settings changed", epoch=resumed_at, changes=list(changes.values()))
            run.forget_records_after(resumed_at)
        records = run.path / "metrics.jsonl" if first else None

        def save(record: Record | None = None) -> None:
            _save(run, trainer, new, settings, data)

        with (
            _noted(run, first, resumed_at),
            _stopped_by_signals(trainer) as signals,
        ):
            try:
                run_epochs(trainer, [save], records, progress if first else False)
            except Stopped:
                save()
                raise StoppedRun(
                    f"{run.path}: stopped by {' and '.join(signals) or 'another process'} in epoch "
                    f"{trainer.finished + 1}; progress has been saved; rerun the command to resume"
                ) from None
        if trainer.is_over and resumed_at == trainer.finished:  # no epochs were left, but a file may be missing
            save()
        wait_for_all()
        return FinishedRun(new.in_units_of_data(), run.records(), data.train, resumed_at)


def prepared(settings: Settings, data: RunData[Rows], device: torch.device | str) -> Prepared:
    """Return the settings with defaults for the data, a new machine, and its trainer."""
    with named(settings.data):
        train, weights = data.train, data.weights
        if isinstance(train, Tensor):
            if has_gaps(train):
                check_columns(train.isnan(), data.names)
            train, weights = repeat_rows(train, weights)
        settings = settings.for_rows(len(train))
        new = make_machine(settings, train, data.held_out, None, data.schema, weights, settings.seed)
        new.machine.to(device)
        log_scale = None if data.schema is None else data.schema.log_scale
        monitor = Monitor(every=settings.measure_every, scale=new.scale, shift=new.shift, log_scale=log_scale)
        options = TrainingOptions.of(settings, objective=make_objective(settings), weights=weights, monitor=monitor)
        return settings, new, make_training(new, train, options, data.held_out, settings.pretrain_epochs)


@contextmanager
def _noted(run: RunFolder, first: bool, resumed_at: int) -> Iterator[None]:
    """Log the start and the end of training in the event log of the run."""
    note = run.note if first else lambda *_, **__: None
    versions = {"version": __version__, "torch": torch.__version__}
    note("resumed" if resumed_at else "begun", epoch=resumed_at, **versions, **environment())
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
def _stopped_by_signals(trainer: Training) -> Iterator[list[str]]:
    """Stop training after the current batch on SIGTERM or SIGUSR1, which clusters send before they end a job."""
    seen: list[str] = []

    def ask(number: int, frame: object) -> None:
        seen.append(signal.Signals(number).name)
        trainer.stopping = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield seen
        return
    before = {name: signal.signal(name, ask) for name in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield seen
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _changes(run: RunFolder, settings: Settings) -> dict[str, str]:
    """Return messages about settings that differ from those of the run, by name. A new run has no differences."""
    before = run.settings()
    return {} if before is None else settings.changes_from(before)


def _for_run(run: RunFolder, settings: Settings) -> Settings:
    """Return the settings with which to start or continue a run.

    Raises:
        RunError: If the settings conflict with those of the run.
    """
    others = run.others()
    if others:
        raise RunError(
            f"{run.path}: not a run directory and not empty (it contains {others[0]}); choose another directory"
        )
    before = run.settings()
    if before is None:
        return settings
    settings = settings.continuing(before)
    changes = _changes(run, settings)
    fixed = [words for name, words in changes.items() if name not in ADJUSTABLE]
    if fixed:
        raise RunError(f"{run.path}: contains a run with other settings: {'; '.join(fixed)}; choose another directory")
    if (settings.epochs or 0) < (before.epochs or 0):
        raise RunError(
            f"{run.path}: {changes['epochs']}; the number of epochs cannot be reduced (epoch {run.last_epoch() or 0} "
            "is done)"
        )
    return settings


def _resume(run: RunFolder, trainer: Training, data: str, settings: Settings, say: Say) -> int:
    """Load the last checkpoint and return its epoch, after checking the digests of data and settings."""
    found = run.last_checkpoint()
    changes = _changes(run, settings)
    for name, words in changes.items():
        if name != "epochs" or found is None:
            say(f"{run.path}: {words}")
    if found is None:
        return 0
    epoch, tensors, values = found
    if values["data"] != data:
        raise RunError(f"{run.path}: the data have changed since this run began; choose another directory")
    known = [*run.digests(), settings.digest()]
    if values.get("settings") not in known:
        raise RunError(f"{run.path}: the checkpoint belongs to a run with different settings; nothing was changed")
    try:
        trainer.restore(TrainingState(tensors, values["trainer"]))
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"{run.path}: the checkpoint does not match the settings; it may be from another version: {reason}"
        ) from None
    now = environment()
    for name, before in values.get("environment", now).items():
        if before != now.get(name):
            warn(
                f"{run.path}: {name} was {before} and is {now.get(name)}; the results are not bit-identical to those "
                "of an uninterrupted run",
                RunWarning,
            )
    _reschedule(trainer, settings)
    if "epochs" in changes and trainer.current is not None:
        trainer.current.best.n_worse = 0  # more epochs were requested after early stopping
    if "epochs" in changes:
        rate = "" if settings.decay == 1 else f"; the learning rate now decays over {settings.epochs} epochs"
        say(f"{run.path}: continuing from epoch {epoch} to {trainer.epochs}{rate}")
    elif trainer.is_over:
        say(f"{run.path}: the run is finished after {epoch} {plural(epoch, 'epoch')}")
    else:
        say(f"{run.path}: resuming after epoch {epoch}")
    return epoch


def _reschedule(trainer: Training, settings: Settings) -> None:
    """Adapt the learning rate of a checkpoint to a larger number of epochs.

    The rate of epoch t is initial·decay^(t/epochs), multiplied by any reduction after divergences. The rate depends
    only on the checkpoint and the settings, so results of an extended run do not depend on later interruptions.
    """
    now = trainer.current
    if now is None or not isinstance(now.scheduler, ExponentialLR):
        return
    gamma = settings.decay ** (1 / max(1, now.epochs))
    if math.isclose(now.scheduler.gamma, gamma, rel_tol=1e-12):  # unchanged
        return
    now.scheduler.gamma = gamma
    rates = [float(base) * gamma**now.finished for base in now.scheduler.base_lrs]  # reduced after divergences
    for group, rate in zip(now.optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):  # a captured step reads this tensor
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _save(run: RunFolder, trainer: Training, new: ScaledMachine, settings: Settings, data: RunData[Rows]) -> None:
    epoch, last = trainer.finished, trainer.is_over
    origin = data.description() | {"run": settings.digest(), "epoch": epoch}
    partial = trainer.is_mid_epoch
    if settings.keeps(epoch) and world().leads and not partial:
        run.save_machine(new.in_units_of_data(), origin, epoch)
    if partial or last or epoch % settings.save_every == 0:
        tensors, values = trainer.state()
        if not world().leads:
            return
        run.save_machine(new.in_units_of_data(), origin)
        values = {"trainer": values, "data": data.digest, "settings": settings.digest(), "environment": environment()}
        run.checkpoint(epoch, tensors, values, partial)
