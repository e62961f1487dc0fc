"""A training that goes epoch by epoch, and can be put down and taken up again."""

import math
import time
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tapmachine.distributed import any_of_all, gathered
from tapmachine.likelihood.exact import is_gaussian
from tapmachine.likelihood.score import check_machine, check_rows
from tapmachine.likelihood.unbiased import has_drifted
from tapmachine.machine import BoltzmannMachine
from tapmachine.torch_versions import has_tested_compiler
from tapmachine.training.captured import CapturedStep
from tapmachine.training.data import Batches, Data, Place
from tapmachine.training.factors import start_from_factors
from tapmachine.training.monitor import Monitor, Record, TrainingWarning
from tapmachine.training.objectives import HerdedPCD, Objective, TAPObjective, default_objective
from tapmachine.training.optimizers import can_be_captured, default_learning_rate, geometric_decay, paper_sgd
from tapmachine.training.state import TrainingState, put_tensors, take_tensors
from tapmachine.training.step import Step, StepResult, can_be_centred
from tapmachine.units import Gaussian
from tapmachine.units.checks import check_count

DECAY = 0.01  # what is left of the default's step size in the end
WORTH_COMPILING = 20_000  # steps, each some milliseconds faster, for a minute of compilation
LOOK_EVERY = 50  # steps between looks at whether a GPU's training has diverged
LARGE_VALUES = 20.0
CUT = 0.5  # of the step size, after a divergence
FALL = 10.0  # nats by which the log-likelihood may fall below its best without a warning, or
FALL_SHARE = 0.1  # of it, if that is more
WORSE = 0.1  # nats, than independent units, at the end of a training
MOST_CUTS = 10
IDLE = 0.01  # deviation of a layer's means over the data, below which it carries nothing


class DivergenceError(RuntimeError):
    """Training diverged again and again, whatever the step size."""


class Stopped(Exception):  # noqa: N818
    """A training was asked to stop, and stands between two batches."""


@dataclass
class _Epoch:
    """An epoch that has begun.

    Attributes:
        order: the state of the generator that its order was drawn with.
        losses, norms: of the batches that were done.
        divergences: steps that were taken back.
        seconds: that it has taken so far.
    """

    order: Tensor
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    divergences: int = 0
    seconds: float = 0.0


def _warn_of_scale(machine: BoltzmannMachine, x: Tensor) -> None:
    largest = max(abs(float(bound)) for bound in x.aminmax())
    if not machine.units()[0].is_countable() and largest > LARGE_VALUES:
        warnings.warn(
            f"values reach {largest:g}; real-valued units are trained well on values of about 1: scale the data",
            TrainingWarning,
            stacklevel=4,
        )


class Trainer:
    """Trains a machine, one epoch at a time. Arguments as for `fit`.

    Two trainers that were made with the same arguments go on in the same way, to the bit, once one of them is given the
    other's state. (A loader's order is its own affair.) `validate=False` takes data as they are: they may be means of
    units.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Data,
        *,
        epochs: int,
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
        validate: bool = True,
        seed: int = 0,
        monitor: Monitor | None = None,
    ) -> None:
        epochs = check_count("epochs", epochs, 0)
        if scheduler is not None and getattr(scheduler, "optimizer", None) is not optimizer:
            raise ValueError("the scheduler drives another optimiser; give fit the one that it was made with")
        check_machine(machine)
        self.machine, self.epochs, self.monitor = machine, epochs, monitor or Monitor()
        self.batches = Batches(machine, x, batch_size, weights, seed, validate)
        self.validation = None if validation is None else check_rows(machine, validation)
        _warn_of_scale(machine, self.batches.sample)
        if not warm_start:
            machine.units()[0].fit_to(self.batches.sample, self.batches.sample_weights)
            if is_gaussian(machine):
                start_from_factors(machine, self.batches.sample, self.batches.sample_weights)
        if optimizer is None:
            n_steps = None if self.batches.n_batches is None else epochs * self.batches.n_batches
            rate = default_learning_rate(machine, self.batches.sample, n_steps, warm_start=True)  # it has started
            optimizer = paper_sgd(machine, rate, weight_decay=0.0)
            scheduler = geometric_decay(optimizer, DECAY, max(1, epochs)) if scheduler is None else scheduler
        self.optimizer, self.scheduler = optimizer, scheduler
        self.has_default_objective = objective is None
        objective = objective or default_objective(machine, self.batches.batch_size)
        centred = can_be_centred(machine, optimizer) if centred is None else centred
        self.generator = torch.Generator(machine.device).manual_seed(seed)
        self.captures = machine.device.type == "cuda" and objective.can_be_captured and can_be_captured(optimizer)
        if compile is None:
            pays = (self.batches.n_batches or 0) * epochs >= WORTH_COMPILING
            compile = self.captures and pays and has_tested_compiler() and find_spec("triton") is not None
        first = self.batches.sample, self.batches.batch_size
        self.step = Step(machine, objective, optimizer, *first, self.generator, l1=l1, centred=centred, compile=compile)
        self.captured: CapturedStep | None = None
        self.finished = self.cuts = 0
        self.begun: _Epoch | None = None  # an epoch that was stopped in its midst
        self.stopping = False  # set by others, to end soon
        self.best = -math.inf  # log-likelihood that was measured, until one is much worse
        self.independent: float | None = None  # that of independent units, once something is measured
        self.has_drifted = False  # TAP's log-likelihood from the unbiased one

    def epoch(self) -> Record:
        """The next epoch, and what is recorded of it.

        Raises:
            Stopped: if `stopping` was set; its state can be put down then, and taken up again.
        """
        number = self.finished + 1
        record: Record = {"epoch": number, "learning_rate": float(self.optimizer.param_groups[0]["lr"])}
        record |= self._pass_over_the_data()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(record["loss"])
        elif self.scheduler is not None:
            self.scheduler.step()
        self.finished = number
        if number in (1, self.epochs) or number % self.monitor.every == 0:
            record |= self.monitor(self.machine, self.batches.sample, self.validation, self.batches.sample_weights)
            self._warn_of_measurements(record)
        if number == self.epochs > 1:
            self._warn_of_idle_layers(record)
        return record

    def _warn_of_idle_layers(self, record: Record) -> None:
        """Says of which hidden layers a deep machine has learnt to make no use."""
        for layer in range(2, len(self.machine.layers)):
            varies = record.get(f"variation_{layer}", math.inf)
            if varies < IDLE:
                warnings.warn(
                    f"the means of hidden layer {layer} differ from row to row by {varies:.2g} only: the machine "
                    "resembles one without it; pretrain the layers, or train for longer",
                    TrainingWarning,
                    stacklevel=4,
                )

    def _warn_of_measurements(self, record: Record) -> None:
        """Warns of a log-likelihood that falls, that TAP no longer knows, or that ends below independent units."""
        value, error = record.get("log_likelihood", math.nan), record.get("log_likelihood_error", 0.0)
        if math.isnan(value):
            return
        if self.independent is None:
            self.independent = self.monitor.independent(self.machine, self.batches.sample, self.batches.sample_weights)
        self._warn_of_a_fall(value)
        self._warn_of_drift(record, value, error)
        if self.finished == self.epochs > 1 and value < self.independent - WORSE - 3 * error:
            warnings.warn(
                f"the machine ends at {value:.4g} nats ({record['log_likelihood_method']}), below the "
                f"{self.independent:.4g} of independent units: it has learnt nothing; try a smaller learning rate, or "
                "more epochs",
                TrainingWarning,
                stacklevel=4,
            )

    def _warn_of_drift(self, record: Record, value: float, error: float) -> None:
        """Warns, once, at the epoch at which TAP's log-likelihood leaves the unbiased one."""
        tap = record.get("tap_log_likelihood", math.nan)
        if self.has_drifted or not has_drifted(tap - value, value, error):
            return
        self.has_drifted = True
        method, bar = record["log_likelihood_method"], f" ± {error:.2g}" if error else ""
        warnings.warn(
            f"epoch {record['epoch']}: TAP's log-likelihood is {tap:.4g} nats where the {method} one is "
            f"{value:.4g}{bar}: TAP is no longer reliable for this machine; go by the {method} one",
            TrainingWarning,
            stacklevel=5,
        )

    def _warn_of_a_fall(self, log_likelihood: float) -> None:
        """Says once that a machine has become much worse than it was."""
        if log_likelihood < self.best - max(FALL, FALL_SHARE * abs(self.best)):
            warnings.warn(
                f"the log-likelihood has fallen from {self.best:.4g} to {log_likelihood:.4g} nats: "
                "the step size is too large, or chains have lost a part of the data, as where those form clusters; "
                "try a smaller learning rate, or TAPObjective() (--objective tap), which needs no chains",
                TrainingWarning,
                stacklevel=4,
            )
            self.best = math.nan  # to which nothing compares: once is enough
        elif log_likelihood > self.best:
            self.best = log_likelihood

    def state(self) -> TrainingState:
        """Where it stands, between two epochs or batches; of several processes all have to ask."""
        tensors: dict[str, Tensor] = {}
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        values = {
            "device": self.machine.device.type,
            "finished": self.finished,
            "cuts": self.cuts,
            "best": str(self.best),  # JSON has no infinity
            "optimizer": take_tensors(self.optimizer.state_dict(), "optimizer", tensors),
            "scheduler": take_tensors(scheduler, "scheduler", tensors),
        }
        tensors |= {f"machine.{name}": value for name, value in self.machine.state_dict().items()}
        tensors |= {f"last_good.{number}": value for number, value in enumerate(self.step.last_good)}
        carry = [gathered(own) for own in self.step.carry] if self.step.objective.is_split else self.step.carry
        tensors |= {f"carry.{number}": value for number, value in enumerate(carry)}
        tensors |= {f"offset.{number}": value for number, value in enumerate(self.step.offsets)}
        tensors |= {"generator.draws": self.generator.get_state(), "generator.order": self.batches.order.get_state()}
        if self.begun is not None:
            done = self.begun
            tensors |= {"begun.order": done.order}
            tensors |= {f"begun.{name}": torch.stack(getattr(done, name)) for name in ("losses", "norms")}
            values["begun"] = {"divergences": done.divergences, "seconds": done.seconds}
        return TrainingState({name: value.detach().clone().cpu() for name, value in tensors.items()}, values)

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Goes on from a state of a trainer that was made with the same arguments."""
        tensors, values = state
        device = self.machine.device
        if values.get("device", device.type) != device.type:
            raise ValueError(f"the training was on a {values['device']} device; it goes on there only, not on {device}")
        own = {name.removeprefix("machine."): z for name, z in tensors.items() if name.startswith("machine.")}
        self.machine.load_state_dict(own)
        for number, last in enumerate(self.step.last_good):
            last.copy_(tensors[f"last_good.{number}"])
        objective = self.step.objective
        if self.has_default_objective and isinstance(objective, HerdedPCD):
            n_chains = len(tensors["carry.0"])  # of the first versions' default: five for each row of a batch
            if n_chains != objective.n_chains:
                self.step.begin_with(HerdedPCD(n_chains=n_chains))
        for number, carried in enumerate(self.step.carry):
            if f"carry.{number}" not in tensors and not carried.is_floating_point():
                continue  # the ages of chains, which checkpoints of the first versions lack
            whole = tensors[f"carry.{number}"]  # of however many processes
            carried.copy_(whole[self.step.world.share(len(whole))] if self.step.objective.is_split else whole)
        for number, offset in enumerate(self.step.offsets):
            if f"offset.{number}" not in tensors:  # as in checkpoints of the first versions
                self.step.find_offsets()
                break
            offset.copy_(tensors[f"offset.{number}"])
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(put_tensors(values["optimizer"], tensors, device))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):  # a captured step reads the tensor that is there
                group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(put_tensors(values["scheduler"], tensors, device))
        self.generator.set_state(tensors["generator.draws"])
        self.batches.order.set_state(tensors["generator.order"])
        self.finished, self.cuts = values["finished"], values["cuts"]
        self.begun = None
        if "begun" in values:
            losses, norms = (list(tensors[f"begun.{name}"].to(device)) for name in ("losses", "norms"))
            self.begun = _Epoch(tensors["begun.order"], losses, norms, **values["begun"])
        self.best = float(values.get("best", "-inf"))
        self.captured = None

    def take_step(self, place: Place) -> StepResult:
        """A step on the batch in a place; captured on a GPU, if it can be."""
        if not self.captures:
            return self.step(*self.batches.take(place))
        self.captured = self.captured or CapturedStep(self.step, self.batches, place)
        return self.captured(place)

    def _pass_over_the_data(self) -> Record:
        now = self.begun or _Epoch(self.batches.order.get_state())
        self.begun = None
        self.batches.order.set_state(now.order)
        unseen: list[Tensor] = []
        start = time.perf_counter() - now.seconds
        every = LOOK_EVERY if self.batches.device.type == "cuda" else 1
        for place in self.batches.epoch(len(now.losses)):
            result = self.take_step(place)
            now.losses.append(result.loss)
            now.norms.append(result.gradient_norm)
            unseen.append(result.good)
            looks = len(now.losses) % every == 0
            if looks:
                now.divergences += self._look(unseen)
                unseen = []
            # Several processes have to agree, which they do when all look.
            if self.stopping if self.step.world.size == 1 else looks and any_of_all(self.stopping):
                now.divergences += self._look(unseen) if unseen else 0
                now.seconds = time.perf_counter() - start
                self.begun = now
                raise Stopped
        if not now.losses:
            raise ValueError("the loader gave no whole batch; it must give some anew in every epoch")
        now.divergences += self._look(unseen) if unseen else 0
        loss, norm = (torch.stack(z).double() for z in (now.losses, now.norms))
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        squares = sum(float(w.detach().double().square().sum()) for w in self.machine.weights)
        return {
            "loss": float(loss[finite].mean()),
            "gradient_norm": float(norm[finite].mean()),
            "weight_norm": squares**0.5,
            "divergences": float(now.divergences),
            "seconds": time.perf_counter() - start,
        }

    def _advice(self) -> str:
        """What to do about a training that diverges."""
        are_gaussian = [isinstance(units, Gaussian) for units in self.machine.units()[1:]]
        if any(below and above for below, above in pairwise(are_gaussian)):
            return "layers of Gaussian units on top of each other are no better than one; use one hidden layer of them"
        if any(are_gaussian) and isinstance(self.step.objective, TAPObjective):
            return "TAP has no solution for Gaussian hidden units with strong couplings; use the default objective"
        return "try a smaller step size, more sweeps, or data on another scale"

    def _look(self, good: list[Tensor]) -> int:
        """Cuts the step size, if steps had to be taken back."""
        bad = len(good) - int(torch.stack(good).sum())
        if not bad:
            return 0
        self.cuts += 1
        groups = self.optimizer.param_groups
        rate = float(groups[0]["lr"])
        if self.cuts > MOST_CUTS:
            raise DivergenceError(
                f"training diverged again and again, last with a step size of {rate:g}; the machine is in its last "
                f"good state; {self._advice()}"
            )
        for group in groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].mul_(CUT)
            else:
                group["lr"] *= CUT
        if self.scheduler is not None and hasattr(self.scheduler, "base_lrs"):  # some work the step size out from them
            self.scheduler.base_lrs = [CUT * rate for rate in self.scheduler.base_lrs]
        warnings.warn(
            f"{bad} step{'s' if bad > 1 else ''} led to what is not finite and {'were' if bad > 1 else 'was'} taken "
            f"back; the step size is cut from {rate:g} to {rate * CUT:g}",
            TrainingWarning,
            stacklevel=5,
        )
        return bad
