"""The loop over epochs, for all types of training; and `fit`."""

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
    """Training that runs epoch by epoch: `Trainer` for one machine, or `PretrainingTrainer` layer by layer.

    Attributes:
        epochs: Total number of epochs.
        finished: Number of completed epochs.
        stopping: Set it to True, for instance in a signal handler, to stop after the current batch.
        is_over: Whether no epoch is left.
        is_mid_epoch: Whether the training was stopped before the end of an epoch.
        current: Trainer of the machine being trained; None before the first epoch of pretraining.
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
        """Train for one epoch and return its record. Raises `Stopped` if `stopping` was set."""

    def joint(self) -> Trainer:
        """Trainer of all layers together."""

    def state(self) -> TrainingState:
        """State between two epochs or batches."""

    def restore(self, state: TrainingState) -> None:
        """Continue from the state of a training with the same arguments."""


@dataclass
class History:
    """Records of all epochs.

    Attributes:
        records: One dictionary per epoch; see `fit`.
    """

    records: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """Values of one quantity over the epochs; NaN for epochs in which it was not measured."""
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
        from tapmachine.display.charts import line_chart
        from tapmachine.display.html import card, escape

        names = ("log_likelihood", "validation_log_likelihood", "tap_log_likelihood")
        series = {name.replace("_", " "): _points(self.records, name) for name in names}
        series = {name: points for name, points in series.items() if points}
        label = "nats per row" if series else "loss"
        chart = line_chart(series or {"loss": _points(self.records, "loss")}, "epoch", label) if self.records else ""
        words = ", ".join(in_words(self.records[-1])) if self.records else ""
        return card(f"History of {len(self)} epochs", f"<div>{escape(words)}</div>", chart)


def _points(records: Sequence[Record], name: str) -> list[tuple[float, float]]:
    """A quantity over the epochs in which it was measured."""
    return [(float(record["epoch"]), float(record[name])) for record in records if record.get(name) is not None]


def run_epochs(
    training: Training,
    after_epoch: Sequence[Callable[[Record], None]] = (),
    log: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """Run the remaining epochs of a training.

    Args:
        training: Any type of training.
        after_epoch: Functions called with the record of each epoch, after it has been written and shown.
        log, progress: As for `fit`.
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

    Each step minimizes F of the machine clamped to a batch minus F of the free machine (`training/loss.py`). By default
    F of the free machine is estimated from persistent Gibbs chains (see `default_objective`), and the final parameters
    are averaged over the last steps. With `validation`, training stops when the log-likelihood of these rows keeps
    falling, and the machine from the best epoch is kept.

    Args:
        machine: Any machine; a new one has small random weights.
        x: Data: a tensor, an array such as a memory map, or a loader of batches. In a tensor or an array in memory, NaN
            is a missing value, and the likelihood is that of the observed values (`training/gaps.py`).
        epochs: Number of passes over the data (default: 300, or as many as make 20,000 steps, but at least 50).
        batch_size: M, number of rows in each step (default: 100, or a quarter of fewer than 400 rows, but at least 10).
        objective: `PCD(k)`, `TAPObjective(…)` or `CD(k)` (default: `default_objective`).
        optimizer: Any torch optimizer over the machine's parameters (default: `paper_sgd` with `default_learning_rate`,
            which decays to a hundredth of its initial value).
        scheduler: Any torch scheduler, stepped after every epoch (`ReduceLROnPlateau` with the loss).
        validation: Held-out data, which are also scored, for early stopping and for selecting the best epoch.
        early_stopping: With `validation`, whether to stop early and keep the best epoch, rather than only measure.
        weights: Weight of each row, for data in memory or in a memory map.
        l1: ε of the penalty ε Σ|W|.
        centered: Whether to use the gradients of centered states (default: True if all units have fields, which only
            custom ones lack).
        averaged: Whether to set the machine to the average of its parameters over about the last eighth of the steps
            instead of their last values (default: True with the default optimizer).
        compile: Whether to compile the steps with `torch.compile`, which takes about a minute and needs torch 2.11
            (default: True on a GPU for `TAPObjective`, if there are enough steps to make up for it).
        warm_start: False first fits the visible units' priors to the data; True keeps them. The default optimizer then
            continues at the final learning rate of the machine's last training, which preserves what it has learned but
            learns slowly: for longer training, call `fit` once with more epochs, or pass an optimizer. A new or
            pretrained machine starts at the default learning rate.
        seed: Random seed. The same seed gives the same weights, bit for bit, unless the data come from a loader that
            determines the order.
        monitor: What to measure after each epoch.
        callbacks: Functions called with the machine and the record after each epoch.
        log: File to which every record is appended as a line of JSON.
        progress: Whether to show progress, as a bar on a terminal or in a notebook and as lines elsewhere
            (default: only on a terminal or in a notebook).

    Returns:
        A record for every epoch: `epoch`, `seconds`, `learning_rate`, `loss`, `gradient_norm`, `weight_norm`,
        `divergences`, and what `Monitor` measures. `kept_epoch` in the last one is the epoch whose machine was kept, if
        it is not the last. `excluded_particles` is the number of particles of a `TAPObjective` with a non-finite F, in
        epochs that have any.

    Raises:
        DivergenceError: If training keeps diverging at ever smaller learning rates. The machine is left in its last
            good state.

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
