"""Layer-by-layer pretraining of deep machines, on states of the layer below given the data [alg:dbmTrain]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine
from tapmachine.training.gaps import check_columns, draw_missing, fill_from_columns, take_gaps
from tapmachine.training.layer_machines import assemble, machine_of_layer, states_of_layer
from tapmachine.training.loop import Callback, History, run_epochs
from tapmachine.training.loss import Objective
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.state import TrainingState, tensors_under
from tapmachine.training.trainer import Trainer
from tapmachine.units import Custom
from tapmachine.units.conditioned import Conditioned

LAYER_DATA = ("samples", "means")
PRETRAINED = ("first", "all")


@dataclass(frozen=True)
class Pretraining:
    """Settings for pretraining the layers of a deep machine one after the other.

    Attributes:
        epochs: Number of epochs per layer.
        layers: `first` trains only the lowest two layers, so that the deep machine starts as this restricted machine
            with small weights above it. `all` trains all layers, one after the other [alg:dbmTrain]. Default: `first`.
        data: Type of training data for the next layer (default: `samples`). `samples` are drawn once from the layer
            below, given the data. `means` are the conditional means of that layer.
        double_inputs: Whether to apply the correction of Salakhutdinov and Hinton (2009) for layers that receive input
            from two sides (default: False). The lowest machine sees the data twice, the highest machine contains its
            hidden units twice, and the weights of the machines in between are halved. The field of a layer is the mean
            of its fields as a hidden and as a visible layer.

    Example:
        >>> from tapmachine.training import Pretraining
        >>> Pretraining(epochs=5).data
        'samples'
    """

    epochs: int
    layers: str = "first"
    data: str = "samples"
    double_inputs: bool = False

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 0)
        if self.data not in LAYER_DATA:
            raise ValueError(f"data is {self.data!r}; expected one of {', '.join(LAYER_DATA)}")
        if self.layers not in PRETRAINED:
            raise ValueError(f"layers is {self.layers!r}; expected one of {', '.join(PRETRAINED)}")
        if self.layers == "first" and (self.double_inputs or self.data != "samples"):
            raise ValueError("double_inputs=True and data='means' require layers='all'")


COMPLETING_SWEEPS = 50  # Gibbs sweeps of the lowest machine to fill in missing values for the next one

MakeTrainer = Callable[
    [BoltzmannMachine, Tensor, int], Trainer
]  # arguments: the machine, the data and the index of a layer


class PretrainingTrainer:
    """Train the layers of a deep machine one after the other and then, with `make_joint`, all layers together.

    Training runs one epoch at a time, as in `Trainer`. The deep machine is updated after each epoch.

    Args:
        machine: Machine with at least two hidden layers, trained in place.
        x: Training data, shape (N, n_visible).
        pretraining: Settings for training the layers.
        make_trainer: Function that creates the trainer of a layer from the layer's restricted machine, data and index.
            The function must not fit the visible units to the data.
        make_joint: Function that creates the trainer of the deep machine after its layers are trained (default: no
            joint training).
        joint_epochs: Number of epochs of joint training (default: 0).
        seed: Random seed for the samples (default: 0).
        weights: Row weights, shape (N,); equal by default.
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
        weights: Tensor | None = None,
    ) -> None:
        check_machine(machine)
        if len(machine.layers) < 3:
            raise ValueError("pretraining requires a machine with at least two hidden layers")
        for index, units in enumerate(machine.layers):
            if isinstance(units, Conditioned):
                raise ValueError(f"layer {index} is conditioned on evidence; pretrain the unconditioned machine")
            if pretraining.double_inputs and index in (0, len(machine.layers) - 1) and isinstance(units, Custom):
                raise ValueError(f"layer {index}: Custom units cannot be doubled; use double_inputs=False")
        self.machine, self.pretraining, self.seed = machine, pretraining, seed
        self.weights = None if weights is None else weights.to(machine.device, machine.dtype)
        self.x, self.missing = take_gaps(machine, x)
        if self.missing is not None:
            check_columns(self.missing)
            self.x = fill_from_columns(self.x, self.missing, self.weights, seed)
            if pretraining.double_inputs:
                raise ValueError("double_inputs=True requires complete rows; impute the missing values first")
        self.make_trainer, self.make_joint = make_trainer, make_joint
        self.n_stages = 1 if pretraining.layers == "first" else len(machine.layers) - 1
        self.epochs = pretraining.epochs * self.n_stages + check_count("joint_epochs", joint_epochs, 0)
        self.trained: list[BoltzmannMachine] = []  # machines of all layers up to the current one
        self.current: Trainer | None = None  # trainer of the current machine, or of the deep one
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether to stop after the current batch."""
        return self._stopping

    @stopping.setter
    def stopping(self, asked: bool) -> None:
        self._stopping = asked
        if self.current is not None:
            self.current.stopping = asked

    @property
    def is_over(self) -> bool:
        """Whether pretraining and joint training are complete."""
        joint = self.current if self.stage == self.n_stages else None
        return self.finished >= self.epochs or (joint is not None and joint.is_over)

    @property
    def is_mid_epoch(self) -> bool:
        """Whether training was stopped before the end of an epoch."""
        return self.current is not None and self.current.is_mid_epoch

    @property
    def finished(self) -> int:
        """Number of completed epochs of all layers and of joint training."""
        before = max(0, self.stage) * self.pretraining.epochs
        return before + (0 if self.current is None else self.current.finished)

    @property
    def stage(self) -> int:
        """Index of the lower of the two layers being trained, or `n_stages` in joint training."""
        if self.current is not None and self.current.machine is self.machine:
            return self.n_stages
        return len(self.trained) - 1

    def epoch(self) -> Record:
        """Train for one epoch and return its record.

        The entry `layer` is the number of the hidden layer that was trained, or 0 for joint training.
        """
        epoch = self.finished + 1
        trainer = self.current
        while trainer is None or trainer.finished >= trainer.epochs:
            trainer = self._enter(self.stage + 1)
        trainer.stopping = self.stopping
        trainer.watch.earlier_epochs = epoch - 1 - trainer.finished
        record = trainer.epoch() | {"epoch": epoch}
        joint = self.stage == self.n_stages
        if not joint:
            assemble(self.machine, self.trained, self.pretraining.double_inputs)
        return record | {"layer": 0.0 if joint else float(self.stage + 1)}

    def joint(self) -> Trainer:
        """Return the trainer for joint training of all layers, even if no epochs are left."""
        return self.current if self.current is not None and self.stage == self.n_stages else self._enter(self.n_stages)

    def _enter(self, stage: int) -> Trainer:
        if stage == self.n_stages:
            assert self.make_joint is not None
            self.current = self.make_joint()
            return self.current
        double_inputs, below = self.pretraining.double_inputs, self.trained[:stage]
        x = self.x
        if self.missing is not None and stage > 0:  # depends only on the machine below, so that a run can be resumed
            draws = torch.Generator(x.device).manual_seed(self.seed)
            x = draw_missing(below[0], x, self.missing, COMPLETING_SWEEPS, draws)
        states = states_of_layer(below, x, self.seed, double_inputs)
        machine = machine_of_layer(self.machine, stage, double_inputs)
        machine.layers[0].fit_to(states, self.weights)
        self.trained.append(machine)
        if self.pretraining.data == "means" and stage > 0:
            states = states_of_layer(below, x, self.seed, double_inputs, means=True)
        if self.missing is not None and stage == 0:  # filled in by the trainer
            states = states.masked_fill(self.missing.view(*self.missing.shape, *[1] * (x.dim() - 2)), torch.nan)
        self.current = self.make_trainer(machine, states, stage)
        return self.current

    # ----- saving and resuming

    def state(self) -> TrainingState:
        """Return the training state between two epochs or batches."""
        if self.current is None:
            return TrainingState({}, {"stage": -1})
        tensors, values = self.current.state()
        for index, machine in enumerate(self.trained[: self.n_stages]):
            tensors |= {f"layer.{index}.{name}": z.detach().clone().cpu() for name, z in machine.state_dict().items()}
        tensors |= {f"deep.{name}": z.detach().clone().cpu() for name, z in self.machine.state_dict().items()}
        return TrainingState(tensors, {"stage": self.stage, "trainer": values})

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Restore the state of another training run with the same arguments."""
        tensors, stage = state.tensors, int(state.values["stage"])
        self.trained, self.current = [], None
        if stage < 0:
            return
        for layer_index in range(min(stage, self.n_stages - 1) + 1):
            machine = machine_of_layer(self.machine, layer_index, self.pretraining.double_inputs)
            machine.load_state_dict(tensors_under(f"layer.{layer_index}.", tensors))
            self.trained.append(machine)
        self.machine.load_state_dict(tensors_under("deep.", tensors))
        if stage < self.n_stages:
            self.trained.pop()  # `_enter` creates this machine again, and the trainer restores it
        self._enter(stage).restore(TrainingState(tensors, state.values["trainer"]))


def pretrain(
    machine: BoltzmannMachine,
    x: Tensor,
    *,
    epochs: int = 20,
    layers: str = "first",
    data: str = "samples",
    double_inputs: bool = False,
    batch_size: int | None = None,
    objective: Callable[[BoltzmannMachine], Objective] | None = None,
    optimizer: Callable[[BoltzmannMachine], Optimizer] | None = None,
    seed: int = 0,
    monitor: Monitor | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> History:
    """Pretrain the layers of a deep machine one after the other, in place.

    By default, only the first hidden layer is trained. Continue with `fit(machine, x, warm_start=True)`, which keeps
    the priors of the visible units.

    Args:
        machine: Machine with at least two hidden layers.
        x: Training data, shape (N, n_visible).
        epochs, layers, data, double_inputs: See `Pretraining`.
        batch_size, seed, progress: See `fit`.
        objective, optimizer: Functions that create the objective and the optimizer of each layer's machine (default:
            those of `fit`).
        monitor: Measurements of the first layer's machine (default: `Monitor()`). Solutions and log-likelihoods of the
            other machines, or of all machines with `double_inputs`, are not measured.
        callbacks: Functions called with the deep machine and the record after each epoch.

    Returns:
        History with one record per epoch. The entry `layer` is the number of the hidden layer that was trained.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, fit, pretrain
        >>> x = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.3).float()
        >>> machine = dbm([Binary(8), Binary(4), Binary(3)])
        >>> pretrain(machine, x, epochs=2, layers="all")["layer"]
        [1.0, 1.0, 2.0, 2.0]
        >>> history = fit(machine, x, epochs=1, warm_start=True)
    """

    def make_trainer(layer_machine: BoltzmannMachine, states: Tensor, stage: int) -> Trainer:
        return Trainer(
            layer_machine,
            states,
            epochs=epochs,
            batch_size=batch_size,
            objective=None if objective is None else objective(layer_machine),
            optimizer=None if optimizer is None else optimizer(layer_machine),
            warm_start=True,
            validate=False,
            seed=seed,
            monitor=monitor_of_layer(monitor or Monitor(), stage, double_inputs),
        )

    pretraining = Pretraining(epochs, layers, data, double_inputs)
    trainer = PretrainingTrainer(machine, x, pretraining, make_trainer, seed=seed)
    return run_epochs(trainer, [partial(callback, machine) for callback in callbacks], progress=progress)


def monitor_of_layer(monitor: Monitor, stage: int, double_inputs: bool) -> Monitor:
    """Return the monitor for the machine of a layer.

    The lowest machine uses the monitor unchanged, unless its inputs are doubled. Monitors of other machines measure
    neither solutions nor log-likelihoods.
    """
    if stage == 0 and not double_inputs:
        return monitor
    return Monitor(n_starts=0, n_rows=monitor.n_rows, every=monitor.every)
