"""Training loop over epochs, and the function `fit`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tapmachine.accelerator.precision import usual_modes
from tapmachine.data.errors import plural
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.batches import Data
from tapmachine.training.monitor import Record
from tapmachine.training.options import TrainingOptions
from tapmachine.training.progress import Reporter, in_words
from tapmachine.training.state import TrainingState
from tapmachine.training.trainer import Trainer

Callback = Callable[[BoltzmannMachine, Record], None]


class Training(Protocol):
    """Interface of trainers, which run one epoch at a time.

    The interface is implemented by `Trainer` for one machine, by `PretrainingTrainer` for layer-by-layer training, and
    for machines that are fitted in one step.

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

    def joint(self) -> "Training":
        """Return the training of all layers together."""

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
        shown = ", ".join([*([f"loss {last['loss']:.4g}"] if "loss" in last else []), *in_words(last)])
        return f"History({len(self)} {plural(len(self), 'epoch')}; last: {shown})"

    def _repr_html_(self) -> str:
        from tapmachine.display.charts import training_curves
        from tapmachine.display.figures import svg
        from tapmachine.display.html import card, escape

        chart = svg("training curves", training_curves, self.records) if self.records else ""
        summary = ", ".join(in_words(self.records[-1])) if self.records else ""
        return card(f"History of {len(self)} {plural(len(self), 'epoch')}", f"<div>{escape(summary)}</div>", chart)


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


@usual_modes()
def fit(
    machine: BoltzmannMachine,
    x: Data,
    options: TrainingOptions | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    log: str | Path | None = None,
    progress: bool | None = None,
    **changes: Any,
) -> History:
    """Train a machine in place [alg:rbmTrain].

    Each step minimizes the free energy F of the machine clamped to a batch minus F of the free machine
    (`training/loss.py`). By default, F of the free machine is estimated from persistent Gibbs chains (see
    `default_objective`), and the final parameters are averaged over the last steps. With `validation`, training stops
    when the log-likelihood of the held-out rows keeps falling, and the machine from the best epoch is kept. The same
    seed gives the same weights, bit for bit, unless a data loader determines the order of the rows.

    Args:
        machine: Machine to train. A new machine has small random weights.
        x: Training data: a tensor, an array such as a memory map, or a data loader. NaN marks missing values in tensors
            and in arrays in memory. Training then maximizes the likelihood of the observed values (`training/gaps.py`).
        options: Options of training, such as `epochs`, `batch_size`, `objective` and `optimizer`;
            `help(TrainingOptions)` describes all of them.
        callbacks: Functions called with the machine and the record after each epoch.
        log: File to which each record is appended as a line of JSON.
        progress: Whether to show progress (default: only on a terminal or in a notebook). Progress is shown as a bar on
            a terminal or in a notebook, and as lines of text elsewhere.
        **changes: Options by name, as in `fit(machine, x, epochs=20, objective=PCD(5))`. They take precedence over
            `options`.

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
    if any(parameter.is_inference() for parameter in machine.parameters()):
        raise ValueError("the machine was created in torch.inference_mode and cannot be trained; create it outside")
    trainer = Trainer(machine, x, options, **changes)
    return run_epochs(trainer, [partial(callback, machine) for callback in callbacks], log, progress)
