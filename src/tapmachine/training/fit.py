"""Training: batches, steps, what every epoch is recorded, and what happens when it diverges."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tapmachine.likelihood.score import check_machine, check_rows
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.data import Batches, Data
from tapmachine.training.monitor import Monitor, TrainingWarning
from tapmachine.training.objectives import HerdedPCD, Objective, TAPObjective
from tapmachine.training.optimizers import can_be_captured, default_learning_rate, geometric_decay, paper_sgd
from tapmachine.training.report import Record, Reporter
from tapmachine.training.starts import Herded
from tapmachine.training.step import CapturedStep, Step, StepResult, can_be_centred

DECAY = 0.01  # what is left of the default's step size in the end
WORTH_COMPILING = 20_000  # steps, each some milliseconds faster, for a minute of compilation
LOOK_EVERY = 50  # steps between looks at whether a GPU's training has diverged
CUT = 0.5  # of the step size, after a divergence
MOST_CUTS = 10

Callback = Callable[[BoltzmannMachine, Record], None]


class DivergenceError(RuntimeError):
    """Training diverged again and again, whatever the step size."""


@dataclass
class History:
    """What was recorded in every epoch.

    Attributes:
        records: one dictionary for each epoch; see `fit`.
    """

    records: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[float]:
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
        shown = ", ".join(f"{name}={last[name]:.4g}" for name in ("loss", "log_likelihood", "n_unique") if name in last)
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
    deterministic, and the best that was found without sampling (see `default_objective`).

    Args:
        machine: any machine, with weights as it was made with: small and random, for a new one.
        x: data: a tensor, an array such as a memory map, or a loader of batches.
        epochs: passes over the data.
        batch_size: M, rows of each step.
        objective: `TAPObjective(…)`, `HerdedPCD(k)`, `CD(k)` or `PCD(k)`; `default_objective`, unless given.
        optimizer: any of torch's, over the machine's parameters; `paper_sgd` with `default_learning_rate`, which
            falls to a hundredth of it, unless given.
        scheduler: any of torch's, stepped after every epoch.
        validation: data that are scored beside the training data.
        weights: how much each row counts.
        l1: ε of the penalty ε Σ|W|.
        centred: whether gradients are those of centred states; by default, where units have fields, as they all do but
            for custom ones.
        compile: whether to compile the steps with `torch.compile`, which takes about a minute; by default on a GPU,
            if there are so many steps that it pays, and one hidden layer at most.
        warm_start: False lets the visible units' priors begin as they fit the data; True leaves them as they are.
        seed: of the batches' order and of all draws: the same seed, the same weights, to the bit.
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
    if isinstance(epochs, bool) or not (isinstance(epochs, int) and epochs >= 0):
        raise ValueError(f"epochs is {epochs!r}; it must be a whole number, 0 or more")
    check_machine(machine)
    batches = Batches(machine, x, batch_size, weights, seed)
    validation = None if validation is None else check_rows(machine, validation)
    if not warm_start:
        machine.units()[0].fit_to(batches.sample)
    if optimizer is None:
        optimizer = paper_sgd(machine, default_learning_rate(machine, batches.sample), weight_decay=0.0)
        scheduler = geometric_decay(optimizer, DECAY, max(1, epochs)) if scheduler is None else scheduler
    objective = objective or default_objective(machine)
    centred = can_be_centred(machine) if centred is None else centred
    monitor = monitor or Monitor()
    generator = torch.Generator(machine.device).manual_seed(seed)
    captured = machine.device.type == "cuda" and objective.can_be_captured and can_be_captured(optimizer)
    if compile is None:
        pays = (batches.n_batches or 0) * epochs >= WORTH_COMPILING and len(machine.layers) <= 2
        compile = captured and pays and find_spec("triton") is not None
    first = batches.sample, batches.batch_size
    step = Step(machine, objective, optimizer, *first, generator, l1=l1, centred=centred, compile=compile)
    trainer = _Trainer(step, batches, captured)
    history = History()
    with Reporter(log, progress, epochs) as report:
        for epoch in range(1, epochs + 1):
            start = time.perf_counter()
            record: Record = {"epoch": epoch, "learning_rate": float(optimizer.param_groups[0]["lr"])}
            record |= trainer.epoch()
            record["seconds"] = time.perf_counter() - start
            if scheduler is not None:
                scheduler.step()
            if epoch in (1, epochs) or epoch % monitor.every == 0:
                record |= monitor(machine, batches.sample, validation)
            history.records.append(record)
            report(record)
            for callback in callbacks:
                callback(machine, record)
    return history


def default_objective(machine: BoltzmannMachine) -> Objective:
    """What `fit` uses unless told: 500 herded chains; with real-valued units, a TAP sweep from 100 of them.

    A pairwise machine has no layers for chains to alternate between: it is trained from the batch, as in the paper.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> default_objective(rbm(Binary(4), Binary(2)))
        HerdedPCD(10, n_chains=500)
        >>> default_objective(rbm(TruncatedGaussian(4), Binary(2)))
        TAPObjective(Herded(10), n_particles=100, n_sweeps=1, TAP())
    """
    if machine.is_pairwise:
        return TAPObjective()
    if all(units.n_states() is not None for units in machine.units()):
        return HerdedPCD(10, n_chains=500)
    return TAPObjective(Herded(10), n_particles=100, n_sweeps=1)


class _Trainer:
    """Runs epochs, and cuts the step size where they diverge."""

    def __init__(self, step: Step, batches: Batches, captures: bool) -> None:
        self.step, self.batches, self.captures, self.cuts = step, batches, captures, 0
        self.run: Step | CapturedStep = step

    def epoch(self) -> Record:
        """One pass over the data."""
        losses, norms, unseen, divergences = [], [], [], 0
        every = LOOK_EVERY if self.batches.device.type == "cuda" else 1
        for number, (x, weights) in enumerate(self.batches):
            if self.captures and not isinstance(self.run, CapturedStep):
                self.run = CapturedStep(self.step, x, weights)
            result = StepResult(*(z.clone() for z in self.run(x, weights)))
            losses.append(result.loss)
            norms.append(result.gradient_norm)
            unseen.append(result.good)
            if number % every == every - 1:
                divergences += self._look(unseen)
                unseen = []
        if not losses:
            raise ValueError("the loader gave no whole batch; it must give some anew in every epoch")
        divergences += self._look(unseen) if unseen else 0
        loss, norm = (torch.stack(z).double() for z in (losses, norms))
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        squares = sum(float(w.detach().double().square().sum()) for w in self.step.machine.weights)
        return {
            "loss": float(loss[finite].mean()),
            "gradient_norm": float(norm[finite].mean()),
            "weight_norm": squares**0.5,
            "divergences": float(divergences),
        }

    def _look(self, good: list[Tensor]) -> int:
        """Cuts the step size, if steps had to be taken back."""
        bad = int((~torch.stack(good)).sum())
        if not bad:
            return 0
        self.cuts += 1
        groups = self.step.optimizer.param_groups
        rate = float(groups[0]["lr"])
        if self.cuts > MOST_CUTS:
            raise DivergenceError(
                f"training diverged again and again, last with a step size of {rate:g}; the machine is in its last "
                "good state; try a smaller step size, more sweeps, or data on another scale"
            )
        for group in groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].mul_(CUT)
            else:
                group["lr"] *= CUT
        warnings.warn(
            f"{bad} step{'s' if bad > 1 else ''} led to what is not finite and {'were' if bad > 1 else 'was'} taken "
            f"back; the step size is cut from {rate:g} to {rate * CUT:g}",
            TrainingWarning,
            stacklevel=4,
        )
        return bad
