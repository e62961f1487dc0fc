"""Training: the loop, and what it records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tapmachine.machine import BoltzmannMachine
from tapmachine.training.data import Data
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.objectives import Objective
from tapmachine.training.report import Reporter, in_words
from tapmachine.training.trainer import Trainer

Callback = Callable[[BoltzmannMachine, Record], None]


@dataclass
class History:
    """What was recorded in every epoch.

    Attributes:
        records: one dictionary for each epoch; see `fit`.
    """

    records: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[Any]:
        """One quantity over the epochs; NaN in those in which it was not measured."""
        if self.records and not any(name in record for record in self.records):
            raise KeyError(f"{name!r} was not recorded; there are {', '.join(self.records[-1])}")
        return [record.get(name, float("nan")) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no epochs)"
        last = self.records[-1]
        shown = ", ".join((f"loss {last['loss']:.4g}", *in_words(last)))
        return f"History({len(self)} epochs; last: {shown})"


def fit(
    machine: BoltzmannMachine,
    x: Data,
    *,
    epochs: int = 50,
    batch_size: int = 100,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    validation: Tensor | None = None,
    weights: Tensor | None = None,
    l1: float = 0.0,
    centred: bool | None = None,
    compile: bool | None = None,
    warm_start: bool = False,
    seed: int = 0,
    monitor: Monitor | None = None,
    callbacks: Sequence[Callback] = (),
    log: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """Trains a machine in place [alg:rbmTrain], and records how it goes.

    Each step minimises F of the machine clamped to a batch less F of the free machine. With the defaults it is
    deterministic: herded Gibbs chains for binary and categorical units, without TAP; a TAP sweep from such chains for
    other units (see `default_objective`). Persistent chains that are sampled, `PCD(10)`, fit binary data better.

    Args:
        machine: any machine, with weights as it was made with: small and random, for a new one.
        x: data: a tensor, an array such as a memory map, or a loader of batches.
        epochs: passes over the data.
        batch_size: M, rows of each step.
        objective: `TAPObjective(…)`, `HerdedPCD(k)`, `CD(k)` or `PCD(k)`; `default_objective`, unless given.
        optimizer: any of torch's, over the machine's parameters; `paper_sgd` with `default_learning_rate`, which
            falls to a hundredth of it, unless given.
        scheduler: any of torch's, stepped after every epoch (with the loss, if it waits for a plateau).
        validation: data that are scored beside the training data.
        weights: how much each row counts, on data in memory or a memory map.
        l1: ε of the penalty ε Σ|W|.
        centred: whether gradients are those of centred states; by default, where units have fields, as they all do but
            for custom ones.
        compile: whether to compile the steps with `torch.compile`, which takes about a minute and needs torch 2.11; by
            default on a GPU, if there are so many steps that it pays, and one hidden layer at most.
        warm_start: False lets the visible units' priors begin as they fit the data; True leaves them as they are.
        seed: of the batches' order and of all draws: the same seed, the same weights, to the bit. (A loader's order is
            its own.)
        monitor: what is measured after each epoch.
        callbacks: called with the machine and the record after each epoch.
        log: a file to which every record is appended as a line of JSON.
        progress: whether to show it: a bar on a terminal, lines elsewhere; by default, on a terminal only.

    Returns:
        For every epoch: `epoch`, `seconds`, `learning_rate`, `loss`, `gradient_norm`, `weight_norm`, `divergences`, and
        what `Monitor` measures.

    Raises:
        DivergenceError: if it goes on diverging with ever smaller step sizes. The machine is in its last good state.

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
        weights=weights,
        l1=l1,
        centred=centred,
        compile=compile,
        warm_start=warm_start,
        seed=seed,
        monitor=monitor,
    )
    history = History()
    with Reporter(log, progress, epochs) as report:
        for _ in range(epochs):
            record = trainer.epoch()
            history.records.append(record)
            report(record)
            for callback in callbacks:
                callback(machine, record)
    return history
