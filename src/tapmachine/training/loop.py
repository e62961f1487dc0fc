"""Training loop over epochs, and the function `fit`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tapmachine.machine import BoltzmannMachine
from tapmachine.training.batches import Data
from tapmachine.training.loss import Objective
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.progress import Reporter, in_words
from tapmachine.training.state import TrainingState
from tapmachine.training.trainer import Trainer

Callback = Callable[[BoltzmannMachine, Record], None]


class Training(Protocol):
    """Interface of trainers, which run one epoch at a time.

    The interface is implemented by `Trainer` for one machine and by `PretrainingTrainer` for layer-by-layer training.

    Attributes:
        epochs: Total number of epochs.
        finished: Number of completed epochs.
        stopping: Whether to stop after the current batch. The flag can be set at any time, for example in a signal
            handler.
        is_over: Whether training is complete.
        is_mid_epoch: Whether training was stopped before the end of an epoch.
        current: Trainer of the machine being trained; None before the first epoch of pretraining.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.training import Trainer, Training
        >>> trainer = Trainer(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2)
        >>> training: Training = trainer
        >>> training.finished, training.is_over
        (0, False)
    """

    epochs: int
    stopping: bool

    @property
    def finished(self) -> int: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def is_mid_epoch(self) -> bool: ...
    @property
    def current(self) -> Trainer | None: ...

    def epoch(self) -> Record:
        """Train for one epoch and return its record.

        Raises:
            Stopped: If `stopping` was set.
        """

    def joint(self) -> Trainer:
        """Return the trainer for joint training of all layers."""

    def state(self) -> TrainingState:
        """Return the training state between two epochs or batches."""

    def restore(self, state: TrainingState) -> None:
        """Restore the state of another training run with the same arguments."""


@dataclass
class History:
    """Training history, with one record per epoch.

    Attributes:
        records: One dictionary per epoch, as described in `fit`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, fit, rbm
        >>> history = fit(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2)
        >>> [record["epoch"] for record in history.records]
        [1, 2]
    """

    records: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of a quantity in all epochs, with NaN for epochs in which it was not measured."""
        if self.records and not any(name in record for record in self.records):
            raise KeyError(f"{name!r} was not recorded; available: {', '.join(self.records[-1])}")
        return [record.get(name, float("nan")) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no epochs)"
        last = self.records[-1]
        shown = ", ".join((f"loss {last['loss']:.4g}", *in_words(last)))
        return f"History({len(self)} epochs; last: {shown})"

    def _repr_html_(self) -> str:
        from tapmachine.display.charts import training_curves
        from tapmachine.display.figures import svg
        from tapmachine.display.html import card, escape

        chart = svg("training curves", training_curves, self.records) if self.records else ""
        summary = ", ".join(in_words(self.records[-1])) if self.records else ""
        return card(f"History of {len(self)} epochs", f"<div>{escape(summary)}</div>", chart)


def run_epochs(
    training: Training,
    after_epoch: Sequence[Callable[[Record], None]] = (),
    log: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """Run the remaining epochs and return their history.

    Args:
        training: Trainer to run, such as `Trainer` or `PretrainingTrainer`.
        after_epoch: Functions called with the record of each epoch, after the record has been written and displayed.
        log, progress: See `fit`.
    """
    history = History()
    with Reporter(log, progress, training.epochs, training.finished) as report:
        while not training.is_over:
            record = training.epoch()
            history.records.append(record)
            report(record)
            for call in after_epoch:
                call(record)
    return history


def fit(
    machine: BoltzmannMachine,
    x: Data,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    validation: Tensor | None = None,
    early_stopping: bool = True,
    weights: Tensor | None = None,
    l1: float = 0.0,
    centered: bool | None = None,
    averaged: bool | None = None,
    compile: bool | None = None,
    warm_start: bool = False,
    seed: int = 0,
    monitor: Monitor | None = None,
    callbacks: Sequence[Callback] = (),
    log: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """Train a machine in place [alg:rbmTrain].

    Each step minimizes the free energy F of the machine clamped to a batch minus F of the free machine
    (`training/loss.py`). By default, F of the free machine is estimated from persistent Gibbs chains (see
    `default_objective`), and the final parameters are averaged over the last steps. With `validation`, training stops
    when the log-likelihood of the held-out rows keeps falling, and the machine from the best epoch is kept.

    Args:
        machine: Machine to train. A new machine has small random weights.
        x: Training data: a tensor, an array such as a memory map, or a data loader. NaN marks missing values in tensors
            and in arrays in memory. Training then maximizes the likelihood of the observed values (`training/gaps.py`).
        epochs: Number of passes over the data (default: enough for 20,000 steps, with a minimum of 50 and a maximum of
            300).
        batch_size: Number of rows per step, M (default: a quarter of the rows, with a minimum of 10 and a maximum of
            100).
        objective: Training objective, such as `PCD(k)`, `TAPObjective(…)` or `CD(k)` (default: `default_objective`).
        optimizer: PyTorch optimizer for the machine's parameters (default: `momentum_sgd` with `default_learning_rate`,
            which decays to 1/100 of its initial value).
        scheduler: PyTorch learning rate scheduler, stepped after every epoch. `ReduceLROnPlateau` receives the loss.
        validation: Held-out rows, whose log-likelihood is recorded and used for early stopping.
        early_stopping: Whether to stop early and keep the machine from the best epoch, if `validation` is given
            (default: True). If False, the held-out rows are only scored.
        weights: Weight of each row, shape (N,), for data in memory or in a memory map. Rows have equal weights by
            default.
        l1: Coefficient ε of the penalty ε Σ|W| (default: 0).
        centered: Whether to use centered gradients (default: True if the machine has layers and all of its units have
            fields). Only custom units can lack fields.
        averaged: Whether the trained machine has the average of its parameters over about the last eighth of the steps,
            instead of the final parameters (default: True with the default optimizer).
        compile: Whether to compile training steps with `torch.compile`, which takes about a minute and needs torch 2.11
            (default: True for `TAPObjective` on a GPU, if the number of steps makes compilation worthwhile).
        warm_start: Whether to keep the priors of the visible units instead of fitting them to the data first (default:
            False). If True, the default optimizer continues at the final learning rate from the machine's previous
            training. A small learning rate preserves what the machine has learned, but learning is slow. For longer
            training, call `fit` once with more epochs, or pass an optimizer. New and pretrained machines start at the
            default learning rate.
        seed: Random seed (default: 0). The same seed gives the same weights, bit for bit, unless a data loader
            determines the order of the rows.
        monitor: Measurements made after each epoch (default: `Monitor()`).
        callbacks: Functions called with the machine and the record after each epoch.
        log: File to which each record is appended as a line of JSON.
        progress: Whether to show progress (default: only on a terminal or in a notebook). Progress is shown as a bar on
            a terminal or in a notebook, and as lines of text elsewhere.

    Returns:
        History with one record per epoch. Each record contains `epoch`, `seconds`, `learning_rate`, `loss`,
        `gradient_norm`, `weight_norm`, `divergences`, and the measurements of `Monitor`. If the machine from an earlier
        epoch was kept, the last record contains that epoch as `kept_epoch`. If a `TAPObjective` had particles with a
        non-finite F, the record contains their number as `excluded_particles`.

    Raises:
        DivergenceError: If training keeps diverging although the learning rate is reduced repeatedly. The machine is
            left in its last good state.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, fit, rbm
        >>> x = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.3).float()
        >>> history = fit(rbm(Binary(8), Binary(4)), x, epochs=2)
        >>> len(history)
        2
    """
    trainer = Trainer(
        machine,
        x,
        epochs=epochs,
        batch_size=batch_size,
        objective=objective,
        optimizer=optimizer,
        scheduler=scheduler,
        validation=validation,
        early_stopping=early_stopping,
        weights=weights,
        l1=l1,
        centered=centered,
        averaged=averaged,
        compile=compile,
        warm_start=warm_start,
        seed=seed,
        monitor=monitor,
    )
    return run_epochs(trainer, [partial(callback, machine) for callback in callbacks], log, progress)
