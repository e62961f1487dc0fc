"""Training of one machine, one epoch at a time, with a state that can be saved and restored between batches."""

import math
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tapmachine.accelerator.compilation import has_tested_compiler
from tapmachine.accelerator.distributed import any_of_all
from tapmachine.data.errors import DivergenceError, Stopped, TrainingWarning, warn
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, take_gaps
from tapmachine.training.batches import Batches, Data
from tapmachine.training.centering import can_be_centered
from tapmachine.training.clusters import ClusteredChains
from tapmachine.training.factors import start_from_data
from tapmachine.training.loss import Objective
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.objectives import default_objective
from tapmachine.training.optimizers import can_be_captured, default_learning_rate, geometric_decay, momentum_sgd
from tapmachine.training.options import TrainingOptions, default_epochs
from tapmachine.training.selection import BestMachine
from tapmachine.training.state import EpochSoFar, TrainingState, restore, state_of
from tapmachine.training.step import Step
from tapmachine.training.watch import Watch, warn_of_scale

if TYPE_CHECKING:
    from tapmachine.training.captured import CapturedStep

WORTH_COMPILING = 20_000  # number of steps after which saving a few milliseconds per step repays the compilation
READ_EVERY = 50  # steps between checks for divergence on a GPU
CUT = 0.5  # factor applied to the learning rate after a divergence
MOST_CUTS = 10


class Trainer:
    """Train a machine one epoch at a time.

    See `fit` for the arguments. A trainer restored to the state of another trainer with the same arguments continues
    with bit-identical results, unless a data loader determines the order of the rows.

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
        self, machine: BoltzmannMachine, x: Data, options: TrainingOptions | None = None, **changes: Any
    ) -> None:
        options = TrainingOptions.changed(options, changes)
        check_machine(machine)
        self.machine, self.generator = machine, torch.Generator(machine.device).manual_seed(options.seed)
        self.batches = Batches(machine, x, options, self.generator)
        self.validation = _checked_validation(machine, options.validation)
        warn_of_scale(machine, self.batches.sample)
        if not options.warm_start:
            start_from_data(machine, self.batches)
        self.options = options = _resolved(options, machine, self.batches)
        assert options.epochs is not None
        assert options.objective is not None
        assert isinstance(options.optimizer, Optimizer)
        self.epochs, self.optimizer, self.scheduler = options.epochs, options.optimizer, options.scheduler
        self.monitor = options.monitor or Monitor()
        self.captures = _can_be_captured(options, machine, self.batches)
        self.step = Step(machine, self.batches.sample, self.batches.batch_size, self.generator, options)
        has_clusters = options.objective.keeps_chains and machine.layers[0].n_states() is not None
        self.clustered = ClusteredChains(self.step, self.batches.sample, options.seed) if has_clusters else None
        self.captured: CapturedStep | None = None
        self.finished = self.cuts = 0
        self.begun: EpochSoFar | None = None  # an epoch that was stopped before its end
        self.stopping = False  # set by the caller, to stop after the current batch
        self.watch = Watch(options.objective.maximized)
        self.best = BestMachine()

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
            for selection in self.batches.epoch(len(now.losses)):
                if self.captures:
                    from tapmachine.training.captured import CapturedStep  # imported on a GPU only

                    self.captured = self.captured or CapturedStep(self.step, self.batches, selection)
                    result = self.captured(selection)
                else:
                    result = self.step(*self.batches.take(selection))
                if self.clustered is not None:
                    self.clustered.after_step()
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
            sample, weights, missing = self.batches.sample, self.batches.sample_weights, self.batches.missing
            record |= self.monitor(self.machine, sample, self.validation, weights, missing)
            if self.watch.maximized is not None:
                record["by_tap"] = True
            self.watch.measured(record, self)
            self._select(record)
            if self.is_over and "log_likelihood" in record:
                record |= self.watch.check_samples(self)
        return record

    def _select(self, record: Record) -> None:
        """Compare the machine with the best one so far on held-out rows, and keep the best one after the last epoch."""
        value, error = record.get("validation_log_likelihood", math.nan), record.get("log_likelihood_error", 0.0)
        if math.isnan(value) or not self.options.early_stopping:
            return
        row_error = record.get("validation_log_likelihood_error", math.nan)
        self.best.compare(self.machine, self.finished, value, error, row_error)
        if self.is_over and self.best.is_clearly_above(value, error):
            self.best.put_into(self.machine)
            record["kept_epoch"] = self.best.epoch + self.watch.earlier_epochs

    def state(self) -> TrainingState:
        """Return the training state between two epochs or batches.

        With several processes, every process must call this method.
        """
        return state_of(self)

    def restore(self, state: TrainingState) -> None:
        """Restore the state of another trainer with the same arguments."""
        restore(self, state)

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
                f"reset to its last good state; {self.step.objective.advice(self.machine)}"
            )
        for group in groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].mul_(CUT)
            else:
                group["lr"] *= CUT
        if self.scheduler is not None and hasattr(self.scheduler, "base_lrs"):  # some compute the rate from these
            self.scheduler.base_lrs = [CUT * rate for rate in self.scheduler.base_lrs]
        warn(
            f"{bad} step{'s' if bad > 1 else ''} produced non-finite values and {'were' if bad > 1 else 'was'} undone; "
            f"learning rate reduced from {rate:g} to {rate * CUT:g}",
            TrainingWarning,
        )
        return bad


def _resolved(options: TrainingOptions, machine: BoltzmannMachine, batches: Batches) -> TrainingOptions:
    """Return options in which defaults that depend on the machine and the data are filled in."""
    epochs = default_epochs(batches.n_batches) if options.epochs is None else options.epochs
    objective = options.objective or default_objective(machine, batches.n_rows)
    if not isinstance(objective, Objective):
        raise ValueError(f"objective is {objective!r}; expected an Objective such as PCD(1)")
    options = replace(options, epochs=epochs, objective=objective)
    if options.optimizer is not None and not isinstance(options.optimizer, Optimizer):
        options = replace(options, optimizer=options.optimizer(machine))
    if options.optimizer is None:
        rate, decay = options.learning_rate, options.decay
        if rate is None:
            rate = default_learning_rate(machine, batches.for_learning_rate, batches.n_rows)
            if options.warm_start and machine.last_learning_rate is not None:
                # At the default rate, a trained machine would lose what it learned at small rates.
                rate, decay = min(rate, machine.last_learning_rate), 1.0
        optimizer = momentum_sgd(machine, rate, options.momentum, options.weight_decay)
        averaged = True if options.averaged is None else options.averaged
        scheduler = geometric_decay(optimizer, decay, max(1, epochs))
        options = replace(options, optimizer=optimizer, scheduler=scheduler, averaged=averaged)
    assert isinstance(options.optimizer, Optimizer)
    if options.centered is None:
        options = replace(options, centered=can_be_centered(machine, options.optimizer))
    if options.compile is None:
        pays = objective.gains_by_compilation and (batches.n_batches or 0) * epochs >= WORTH_COMPILING
        compile = _can_be_captured(options, machine, batches) and pays and has_tested_compiler()
        options = replace(options, compile=compile and find_spec("triton") is not None)
    return options


def _can_be_captured(options: TrainingOptions, machine: BoltzmannMachine, batches: Batches) -> bool:
    """Return whether steps can be captured as CUDA graphs."""
    objective, optimizer = options.objective, options.optimizer
    if machine.device.type != "cuda" or objective is None or not isinstance(optimizer, Optimizer):
        return False
    draws_units_in_turn = machine.is_pairwise and batches.gaps is not None
    return objective.can_be_captured and can_be_captured(optimizer) and not draws_units_in_turn


def _checked_validation(machine: BoltzmannMachine, validation: Tensor | None) -> Tensor | None:
    """Return the states of held-out rows, with NaN for missing values, on the device of the machine."""
    if validation is None:
        return None
    complete, missing = take_gaps(machine, validation)
    return complete if missing is None else validation.to(machine.device)
