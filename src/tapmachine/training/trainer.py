"""Training of one machine, one epoch at a time, with a state that can be saved and restored between batches."""

import math
import time
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tapmachine.accelerator.distributed import any_of_all
from tapmachine.accelerator.torch_versions import has_tested_compiler
from tapmachine.data.budget import default_epochs
from tapmachine.data.checks import check_count
from tapmachine.data.errors import DivergenceError, Stopped, TrainingWarning, warn
from tapmachine.data.rows import Rows
from tapmachine.exact.gaussian import is_gaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine
from tapmachine.training.batches import Batches, Data
from tapmachine.training.captured import CapturedStep
from tapmachine.training.centering import can_be_centered
from tapmachine.training.checkpoint import restore, state_of
from tapmachine.training.epoch import EpochSoFar
from tapmachine.training.factors import start_from_factors
from tapmachine.training.gaps import take_gaps
from tapmachine.training.loss import Objective
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.objectives import ExactSlabs, TAPObjective, default_objective
from tapmachine.training.optimizers import can_be_captured, default_learning_rate, geometric_decay, momentum_sgd
from tapmachine.training.selection import BestMachine
from tapmachine.training.state import TrainingState
from tapmachine.training.step import Step
from tapmachine.training.watch import Watch, warn_of_scale
from tapmachine.units import Gaussian

DECAY = 0.01  # final learning rate of the default optimizer, as a fraction of the initial learning rate
WORTH_COMPILING = 20_000  # number of steps after which saving a few milliseconds per step repays the compilation
READ_EVERY = 50  # steps between checks for divergence on a GPU
CUT = 0.5  # factor applied to the learning rate after a divergence
MOST_CUTS = 10


class Trainer:
    """Train a machine one epoch at a time.

    See `fit` for the arguments. In addition, `validate=False` skips validation of the data, which may then contain unit
    means instead of states. A trainer restored to the state of another trainer with the same arguments continues with
    bit-identical results, unless a data loader determines the order of the rows.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.training import Trainer
        >>> trainer = Trainer(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2)
        >>> record = trainer.epoch()
        >>> trainer.finished, trainer.is_over
        (1, False)
    """

    def __init__(
        self,
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
        validate: bool = True,
        seed: int = 0,
        monitor: Monitor | None = None,
    ) -> None:
        epochs = None if epochs is None else check_count("epochs", epochs, 0)
        if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
            raise ValueError("the scheduler belongs to another optimizer; pass its optimizer to fit as well")
        check_machine(machine)
        self.machine, self.monitor = machine, monitor or Monitor()
        self.generator = torch.Generator(machine.device).manual_seed(seed)
        self.batches = Batches(machine, x, batch_size, weights, seed, validate, self.generator)
        self.epochs = epochs = default_epochs(self.batches.n_batches) if epochs is None else epochs
        if validation is not None:
            complete, missing = take_gaps(machine, validation)
            validation = complete if missing is None else validation.to(machine.device)
        self.validation = validation
        self.early_stopping = early_stopping
        warn_of_scale(machine, self.batches.sample)
        if not warm_start:
            if self.batches.gaps is not None and is_gaussian(machine):
                self.batches.gaps.improve(self._start_from)
            self._start_from(machine, self.batches.to_fit[0])
        if optimizer is None:
            rate = default_learning_rate(machine, self.batches.sample, self.batches.n_rows, warm_start=True)
            decay = DECAY
            if warm_start and machine.last_learning_rate is not None:
                # At the default rate, a trained machine would lose what it learned at small rates.
                rate, decay = min(rate, machine.last_learning_rate), 1.0
            optimizer = momentum_sgd(machine, rate, weight_decay=0.0)
            averaged = True if averaged is None else averaged
            scheduler = geometric_decay(optimizer, decay, max(1, epochs)) if scheduler is None else scheduler
        self.optimizer, self.scheduler = optimizer, scheduler
        objective = objective or default_objective(machine, self.batches.n_rows or 0)
        if not isinstance(objective, Objective):
            raise ValueError(f"objective is {objective!r}; expected an Objective such as PCD(1)")
        centered = can_be_centered(machine, optimizer) if centered is None else centered
        self.captures = machine.device.type == "cuda" and objective.can_be_captured and can_be_captured(optimizer)
        self.captures = self.captures and not (machine.is_pairwise and self.batches.gaps is not None)
        if compile is None:
            pays = objective.gains_by_compilation and (self.batches.n_batches or 0) * epochs >= WORTH_COMPILING
            compile = self.captures and pays and has_tested_compiler() and find_spec("triton") is not None
        first = self.batches.sample, self.batches.batch_size
        self.step = Step(
            machine,
            objective,
            optimizer,
            *first,
            self.generator,
            l1=l1,
            centered=centered,
            compile=compile,
            averaged=bool(averaged),
        )
        self.captured: CapturedStep | None = None
        self.finished = self.cuts = 0
        self.begun: EpochSoFar | None = None  # an epoch that was stopped before its end
        self.stopping = False  # set by the caller, to stop after the current batch
        self.watch = Watch(objective.maximized if isinstance(objective, TAPObjective) else None)
        self.best = BestMachine()

    def _start_from(self, machine: BoltzmannMachine, x: Rows) -> None:
        """Fit the visible units, or all parameters of a machine with two Gaussian layers, to the data."""
        machine.layers[0].fit_to(x, self.batches.to_fit[1])  # type: ignore[arg-type]
        if is_gaussian(machine) and isinstance(x, Tensor):
            start_from_factors(machine, x, self.batches.sample_weights)

    @property
    def is_over(self) -> bool:
        """Whether all epochs are complete, or early stopping has ended training."""
        return self.finished >= self.epochs or self.best.is_final

    @property
    def is_mid_epoch(self) -> bool:
        """Whether training was stopped before the end of an epoch."""
        return self.begun is not None

    @property
    def current(self) -> "Trainer":
        """This trainer."""
        return self

    def joint(self) -> "Trainer":
        """Return this trainer, which trains all layers jointly."""
        return self

    def epoch(self) -> Record:
        """Train for one epoch, or for the rest of a stopped epoch, and return its record.

        Between epochs, the machine has the average of the parameters over the last steps, if parameters are averaged.

        Raises:
            Stopped: If `stopping` was set. The state can then be saved, and training can be resumed.
        """
        with self.step.without_average():
            learning_rate = float(self.optimizer.param_groups[0]["lr"])
            now = self.begun or EpochSoFar(self.batches.order.get_state())
            self.begun = None
            self.batches.order.set_state(now.order)
            unread: list[Tensor] = []
            start = time.perf_counter() - now.seconds
            every = READ_EVERY if self.batches.device.type == "cuda" else 1
            for place in self.batches.epoch(len(now.losses)):
                if self.captures:
                    self.captured = self.captured or CapturedStep(self.step, self.batches, place)
                    result = self.captured(place)
                else:
                    result = self.step(*self.batches.take(place))
                now.losses.append(result.loss)
                now.norms.append(result.gradient_norm)
                unread.append(result.good)
                reads = len(now.losses) % every == 0
                if reads:
                    now.divergences += self._count_divergences(unread)
                    unread = []
                # Several processes must agree on stopping, which is possible only when all processes read.
                if self.stopping if self.step.world.size == 1 else reads and any_of_all(self.stopping):
                    now.divergences += self._count_divergences(unread) if unread else 0
                    now.seconds = time.perf_counter() - start
                    self.begun = now
                    raise Stopped
            if not now.losses:
                raise ValueError("the loader yielded no complete batch; expected batches in every epoch")
            now.divergences += self._count_divergences(unread) if unread else 0
            record = {"epoch": self.finished + 1, "learning_rate": learning_rate} | now.record(self.machine)
            record["seconds"] = time.perf_counter() - start
            record |= self._count_excluded()
            if isinstance(self.scheduler, ReduceLROnPlateau):
                self.scheduler.step(record["loss"])
            elif self.scheduler is not None:
                self.scheduler.step()
            self.finished += 1
            last = float(self.optimizer.param_groups[0]["lr"])
            self.machine.last_learning_rate = last or self.machine.last_learning_rate  # some schedulers end at 0
        if self.monitor.is_due(self.finished, self.epochs):
            x, weights, missing = self.batches.sample, self.batches.sample_weights, self.batches.missing
            record |= self.monitor(self.machine, x, self.validation, weights, missing)
            last = self.finished == self.epochs > 1
            self.watch.measured(record, self.monitor, self.machine, x, weights, last, missing, self.batches.to_fit)
            self._select(record)
        return record

    def _select(self, record: Record) -> None:
        """Compare the machine with the best one so far on held-out rows, and keep the best one after the last epoch."""
        value, error = record.get("validation_log_likelihood", math.nan), record.get("log_likelihood_error", 0.0)
        if math.isnan(value) or not self.early_stopping:
            return
        row_error = record.get("validation_log_likelihood_error", math.nan)
        self.best.compare(self.machine, self.finished, value, error, row_error)
        if self.is_over and self.best.is_clearly_above(value, error):
            self.best.put_into(self.machine)
            record["kept_epoch"] = self.best.epoch

    def state(self) -> TrainingState:
        """Return the training state between two epochs or batches.

        With several processes, every process must call this method.
        """
        return state_of(self)

    def restore(self, state: TrainingState) -> None:
        """Restore the state of another trainer with the same arguments."""
        restore(self, state)

    def _advice(self) -> str:
        """Return advice on how to prevent divergence."""
        are_gaussian = [isinstance(units, Gaussian) for units in list(self.machine.layers)[1:]]
        if any(below and above for below, above in pairwise(are_gaussian)):
            return "use a single Gaussian hidden layer, because stacked Gaussian layers are no more expressive"
        if isinstance(self.step.objective, ExactSlabs):
            return "try a smaller learning rate"
        if any(are_gaussian) and isinstance(self.step.objective, TAPObjective):
            return "use the default objective, because TAP has no solution for Gaussian units with strong couplings"
        if any(units.has_counts for units in self.machine.layers) and isinstance(self.step.objective, TAPObjective):
            return "use the default objective, because TAP has no solution for counts with strong couplings"
        return "try a smaller learning rate, more sweeps, or data on another scale"

    def _count_excluded(self) -> Record:
        """Return and reset the number of particles excluded in an epoch, if any.

        A warning is issued the first time that particles are excluded.
        """
        count = self.step.objective.excluded(self.step.carry)
        if count is None or not int(count):
            return {}
        n_excluded = float(count)
        count.zero_()
        self.watch.excluded(n_excluded, self.finished + 1)
        return {"excluded_particles": n_excluded}

    def _count_divergences(self, good: list[Tensor]) -> int:
        """Count the steps that were undone, and reduce the learning rate if there are any."""
        bad = len(good) - int(torch.stack(good).sum())
        if not bad:
            return 0
        self.cuts += 1
        groups = self.optimizer.param_groups
        rate = float(groups[0]["lr"])
        if self.cuts > MOST_CUTS:
            raise DivergenceError(
                f"training diverged repeatedly, most recently at a learning rate of {rate:g}, and the machine was "
                f"reset to its last good state; {self._advice()}"
            )
        for group in groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].mul_(CUT)
            else:
                group["lr"] *= CUT
        if self.scheduler is not None and hasattr(
            self.scheduler, "base_lrs"
        ):  # some schedulers compute the learning rate from these
            self.scheduler.base_lrs = [CUT * rate for rate in self.scheduler.base_lrs]
        warn(
            f"{bad} step{'s' if bad > 1 else ''} produced non-finite values and {'were' if bad > 1 else 'was'} undone; "
            f"learning rate reduced from {rate:g} to {rate * CUT:g}",
            TrainingWarning,
        )
        return bad
