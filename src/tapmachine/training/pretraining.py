"""Deep machines, layer by layer: each next layer is trained on what the one below makes of the data [alg:dbmTrain]."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.beliefs import Tilt
from tapmachine.likelihood.score import check_machine, check_rows
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.settings import LAYER_DATA
from tapmachine.training.fit import Callback, History
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.objectives import Objective
from tapmachine.training.report import Reporter
from tapmachine.training.state import TrainingState
from tapmachine.training.trainer import Trainer
from tapmachine.units import Custom, Units
from tapmachine.units.checks import check_count
from tapmachine.units.conditioned import Conditioned

CHUNK_ROWS = 10_000  # that a layer is drawn for at a time


@dataclass(frozen=True)
class Pretraining:
    """How the layers of a deep machine are trained one after the other.

    Attributes:
        epochs: of each layer.
        data: what the next layer is trained on, of the layer below it given the data: `samples`, drawn once, or
            `means`.
        doubled: the correction of Salakhutdinov and Hinton (2009): a layer between two others will hear from both, so
            the lowest machine sees the data twice, the highest one has its hidden units twice, those between are
            trained as they are and halved, and a layer's field is the mean of those it had as hidden and as visible
            one.
    """

    epochs: int
    data: str = "samples"
    doubled: bool = False

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 0)
        if self.data not in LAYER_DATA:
            raise ValueError(f"data is {self.data!r}; it must be one of {', '.join(LAYER_DATA)}")


MakeTrainer = Callable[[BoltzmannMachine, Tensor, int], Trainer]  # of a layer's machine, its data, and its number


class PretrainingTrainer:
    """Trains the layers of a deep machine one after the other, and then, if that is asked for, all together.

    One epoch at a time, as `Trainer`; the deep machine is brought up to date after each.

    Args:
        machine: with two hidden layers or more; it is trained in place.
        x: data, (N, n_visible).
        pretraining: of the layers.
        make_trainer: the trainer of one layer's machine; it must not fit the visible units to the data.
        make_joint: the trainer of the deep machine, made once its layers are trained; None for none.
        joint_epochs: how many that will make.
        seed: of the samples.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Tensor,
        pretraining: Pretraining,
        make_trainer: MakeTrainer,
        make_joint: Callable[[], Trainer] | None = None,
        joint_epochs: int = 0,
        seed: int = 0,
    ) -> None:
        check_machine(machine)
        if len(machine.layers) < 3:
            raise ValueError("pretraining is for deep machines, with two hidden layers or more")
        for number, units in enumerate(machine.units()):
            if isinstance(units, Conditioned):
                raise ValueError(f"layer {number}: there is evidence on its units; pretrain the machine without it")
            if pretraining.doubled and number in (0, len(machine.layers) - 1) and isinstance(units, Custom):
                raise ValueError(f"layer {number}: Custom units cannot be doubled; use doubled=False")
        self.machine, self.x, self.pretraining, self.seed = machine, check_rows(machine, x), pretraining, seed
        self.make_trainer, self.make_joint = make_trainer, make_joint
        self.n_stages = len(machine.layers) - 1
        self.epochs = pretraining.epochs * self.n_stages + joint_epochs
        self.trained: list[BoltzmannMachine] = []  # of each layer, up to the one that is trained now
        self.trainer: Trainer | None = None  # of that one, or of the deep machine
        self.wants_to_stop = False

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end soon, as that of a `Trainer`."""
        return self.wants_to_stop

    @stopping.setter
    def stopping(self, asked: bool) -> None:
        self.wants_to_stop = asked
        if self.trainer is not None:
            self.trainer.stopping = asked

    @property
    def begun(self) -> object:
        """An epoch that was stopped in its midst, if there is one."""
        return None if self.trainer is None else self.trainer.begun

    @property
    def finished(self) -> int:
        """How many epochs were made, of all layers."""
        before = max(0, self.stage) * self.pretraining.epochs
        return before + (0 if self.trainer is None else self.trainer.finished)

    @property
    def stage(self) -> int:
        """The number of the layer below the couplings that are trained now; as many as layers with all together."""
        if self.trainer is not None and self.trainer.machine is self.machine:
            return self.n_stages
        return len(self.trained) - 1

    def epoch(self) -> Record:
        """The next epoch, and what is recorded of it; `layer` says of which hidden layer, 0 for all together."""
        number = self.finished + 1
        trainer = self.trainer
        while trainer is None or trainer.finished >= trainer.epochs:
            trainer = self._enter(self.stage + 1)
        trainer.stopping = self.stopping
        record = trainer.epoch() | {"epoch": number}
        joint = self.stage == self.n_stages
        if not joint:
            self._assemble()
        return record | {"layer": 0.0 if joint else float(self.stage + 1)}

    def joint_trainer(self) -> Trainer:
        """The trainer of all layers together, also if it has nothing to do."""
        return self.trainer if self.trainer is not None and self.stage == self.n_stages else self._enter(self.n_stages)

    def _enter(self, stage: int) -> Trainer:
        if stage == self.n_stages:
            assert self.make_joint is not None
            self.trainer = self.make_joint()
            return self.trainer
        states = self._states_of_layer(stage)
        machine = self._machine_of_layer(stage)
        machine.units()[0].fit_to(states)
        self.trained.append(machine)
        means = self.pretraining.data == "means" and stage > 0
        self.trainer = self.make_trainer(machine, self._states_of_layer(stage, means=True) if means else states, stage)
        return self.trainer

    # ----- the machine of one layer, and its data

    def _machine_of_layer(self, stage: int) -> BoltzmannMachine:
        below, above = deepcopy(self.machine.units()[stage]), deepcopy(self.machine.units()[stage + 1])
        weights = self.machine.weights[stage].detach().clone()
        if self.pretraining.doubled and stage == 0:
            below, weights = _twice(below), torch.cat((weights, weights))
        if self.pretraining.doubled and stage == self.n_stages - 1:
            above, weights = _twice(above), torch.cat((weights, weights), 1)
        machine = rbm(below, above, weights)
        machine.weights[0].requires_grad_(self.machine.weights[stage].requires_grad)
        return machine

    @torch.no_grad()
    def _states_of_layer(self, stage: int, means: bool = False) -> Tensor:
        """States of a layer given the data, through all layers below it; at last, means if they are asked for."""
        generator = torch.Generator(self.machine.device).manual_seed(self.seed)
        states = torch.cat((self.x, self.x), 1) if self.pretraining.doubled else self.x
        for number, machine in enumerate(self.trained[:stage], 1):
            parts = []
            for part in states.split(CHUNK_ROWS):
                tilt = Tilt(machine.field_on(1, [part, None]), 0.0)
                drawn = machine.units()[1].sample(tilt, generator)  # also before means: the draws below stay the same
                parts.append(machine.units()[1].moments(tilt).mean if means and number == stage else drawn)
            states = torch.cat(parts)
        return states

    @torch.no_grad()
    def _assemble(self) -> None:
        """Puts the layers that were trained so far into the deep machine."""
        layers, last = self.machine.units(), self.n_stages - 1
        for stage, machine in enumerate(self.trained):
            below, above = machine.units()
            weights = machine.weights[0].detach()
            if stage == 0:
                _copy_parameters(below, layers[0])
            _copy_parameters(above, layers[stage + 1])
            if self.pretraining.doubled:
                weights = weights.unflatten(0, (2, -1)).mean(0) if stage == 0 else weights
                weights = weights.unflatten(1, (2, -1)).mean(1) if stage == last else weights
                weights = weights if stage in (0, last) else 0.5 * weights
                if stage > 0:
                    _average_fields(self.trained[stage - 1].units()[1], below, layers[stage])
            self.machine.weights[stage].copy_(weights)

    # ----- to put it down and take it up again

    def state(self) -> TrainingState:
        """Where it stands, between two epochs."""
        if self.trainer is None:
            return TrainingState({}, {"stage": -1})
        tensors, values = self.trainer.state()
        for number, machine in enumerate(self.trained[: self.n_stages]):
            tensors |= {f"layer.{number}.{name}": z.detach().clone().cpu() for name, z in machine.state_dict().items()}
        tensors |= {f"deep.{name}": z.detach().clone().cpu() for name, z in self.machine.state_dict().items()}
        return TrainingState(tensors, {"stage": self.stage, "trainer": values})

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Goes on from a state of a trainer that was made with the same arguments."""
        tensors, stage = state.tensors, int(state.values["stage"])
        self.trained, self.trainer = [], None
        if stage < 0:
            return
        for number in range(min(stage, self.n_stages - 1) + 1):
            machine = self._machine_of_layer(number)
            machine.load_state_dict(_named(tensors, f"layer.{number}."))
            self.trained.append(machine)
        self.machine.load_state_dict(_named(tensors, "deep."))
        if stage < self.n_stages:
            self.trained.pop()  # entering makes it again, and the trainer restores it
        self._enter(stage).restore(TrainingState(tensors, state.values["trainer"]))


def pretrain(
    machine: BoltzmannMachine,
    x: Tensor,
    *,
    epochs: int = 20,
    data: str = "samples",
    doubled: bool = False,
    batch_size: int = 100,
    objective: Callable[[BoltzmannMachine], Objective] | None = None,
    optimizer: Callable[[BoltzmannMachine], Optimizer] | None = None,
    seed: int = 0,
    monitor: Monitor | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> History:
    """Trains the layers of a deep machine one after the other, in place, as a start for `fit` [alg:dbmTrain].

    Go on with `fit(machine, x, warm_start=True)`, which leaves the visible units as they are now.

    Args:
        machine: with two hidden layers or more.
        x: data, (N, n_visible).
        epochs, data, doubled: see `Pretraining`.
        batch_size, seed, progress: as for `fit`.
        objective, optimizer: functions that make one for each layer's machine; those of `fit`, unless given.
        monitor: what is measured of the first layer's machine; of the others, and if it is doubled, only what needs no
            solutions.
        callbacks: called with the deep machine and the record after each epoch.

    Returns:
        A record for every epoch, whose `layer` is the hidden layer that was trained.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, fit, pretrain
        >>> x = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.3).float()
        >>> machine = dbm([Binary(8), Binary(4), Binary(3)])
        >>> pretrain(machine, x, epochs=2)["layer"]
        [1.0, 1.0, 2.0, 2.0]
        >>> history = fit(machine, x, epochs=1, warm_start=True)
    """

    def make_trainer(own: BoltzmannMachine, states: Tensor, stage: int) -> Trainer:
        return Trainer(
            own,
            states,
            epochs=epochs,
            batch_size=batch_size,
            objective=None if objective is None else objective(own),
            optimizer=None if optimizer is None else optimizer(own),
            warm_start=True,
            validate=False,
            seed=seed,
            monitor=monitor_of_layer(monitor or Monitor(), stage, doubled),
        )

    pretraining = Pretraining(epochs, data, doubled)
    trainer = PretrainingTrainer(machine, x, pretraining, make_trainer, seed=seed)
    history = History()
    with Reporter(None, progress, trainer.epochs) as report:
        while trainer.finished < trainer.epochs:
            record = trainer.epoch()
            history.records.append(record)
            report(record)
            for callback in callbacks:
                callback(machine, record)
    return history


def monitor_of_layer(monitor: Monitor, stage: int, doubled: bool) -> Monitor:
    """The same for the lowest machine; what needs no solutions, where log-likelihoods are not those of the data."""
    if stage == 0 and not doubled:
        return monitor
    return Monitor(n_starts=0, n_rows=monitor.n_rows, every=monitor.every)


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): z for name, z in tensors.items() if name.startswith(prefix)}


def _twice(units: Units) -> Units:
    """Two copies of each of the units, all of the first before all of the second."""
    copy, n = deepcopy(units), units.n
    for part in copy.modules():
        if isinstance(part, Units):
            part.n = 2 * n
        for own in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if own.dim() and len(own) == n:
                own.data = torch.cat((own.data, own.data))
    return copy


def _average_fields(first: Units, second: Units, target: Units) -> None:
    fields = [getattr(units, "field", None) for units in (first, second, target)]
    if all(isinstance(field, Tensor) for field in fields):
        fields[2].copy_(0.5 * (fields[0] + fields[1]))  # type: ignore[union-attr, operator]


def _copy_parameters(source: Units, target: Units) -> None:
    """From units to as many, or to half as many: then the mean of both copies."""
    targets, sources = ((*units.parameters(), *units.buffers()) for units in (target, source))
    for own, given in zip(targets, sources, strict=True):
        own.copy_(given if given.shape == own.shape else given.unflatten(0, (2, -1)).mean(0))
