"""Layer-by-layer pretraining of deep machines, on states of the layer below given the data [alg:dbmTrain]."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.accelerator.precision import usual_modes
from tapmachine.data.checks import check_count
from tapmachine.data.rows import Rows, held_in_memory
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.machine.checks import check_machine, take_gaps
from tapmachine.machine.sampler import independently, upward
from tapmachine.training.gaps import check_columns, draw_missing, fill_from_columns
from tapmachine.training.loop import Callback, History, run_epochs
from tapmachine.training.monitor import Monitor, Record
from tapmachine.training.options import TrainingOptions
from tapmachine.training.state import TrainingState, tensors_under
from tapmachine.training.trainer import Trainer
from tapmachine.units import Units
from tapmachine.units.conditioned import Conditioned

DEFAULT_EPOCHS = 20
COMPLETING_SWEEPS = 50  # Gibbs sweeps of the lowest machine to fill in missing values for the next one
CHUNK_ROWS = 10_000  # number of rows for which a layer is drawn at a time


class PretrainingTrainer:
    """Train the layers of a deep machine one after the other, and then all layers together.

    Training runs one epoch at a time, as in `Trainer`. The deep machine is updated after each epoch.

    Args:
        machine: Machine with at least two hidden layers, trained in place.
        x: Training data, shape (N, n_visible).
        options: Options of training all layers together, for `epochs` epochs, and of training each layer, without
            `validation`. An optimizer must be a function that creates one for a machine.
        pretrain_epochs: Number of epochs per layer (default: 20).
        all_layers: Whether to train all layers, one after the other [alg:dbmTrain]. If False (the default), only the
            lowest two layers are trained, so that the deep machine starts as this restricted machine with small weights
            above it.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Rows,
        options: TrainingOptions,
        pretrain_epochs: int = DEFAULT_EPOCHS,
        all_layers: bool = False,
    ) -> None:
        check_machine(machine)
        if len(machine.layers) < 3:
            raise ValueError("pretraining requires a machine with at least two hidden layers")
        for index, units in enumerate(machine.layers):
            if isinstance(units, Conditioned):
                raise ValueError(f"layer {index} is conditioned on evidence; pretrain the unconditioned machine")
        if isinstance(options.optimizer, Optimizer):
            raise ValueError("pretraining requires an optimizer for each layer; pass a function that creates one")
        if options.epochs is None:
            raise ValueError("epochs is None; expected the number of epochs in which all layers are trained together")
        self.machine, self.rows, self.options = machine, x, replace(options, warm_start=True)
        weights = options.weights
        self.weights = None if weights is None else weights.to(machine.device, machine.dtype)
        self.x, self.missing = take_gaps(machine, held_in_memory(x))
        if self.missing is not None:
            check_columns(self.missing)
            self.x = fill_from_columns(self.x, self.missing, self.weights, options.seed)
        self.pretrain_epochs = check_count("pretrain_epochs", pretrain_epochs, 0)
        self.n_stages = len(machine.layers) - 1 if all_layers else 1
        self.epochs = pretrain_epochs * self.n_stages + options.epochs
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
        before = max(0, self.stage) * self.pretrain_epochs
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
            _assemble(self.machine, self.trained)
        return record | {"layer": 0.0 if joint else float(self.stage + 1)}

    def joint(self) -> Trainer:
        """Return the trainer for joint training of all layers, even if no epochs are left."""
        return self.current if self.current is not None and self.stage == self.n_stages else self._enter(self.n_stages)

    def _enter(self, stage: int) -> Trainer:
        """Create the trainer of a stage, which depends only on the machines below, so that a run can be resumed."""
        if stage == self.n_stages:
            self.current = Trainer(self.machine, self.rows, self.options)
            return self.current
        below, x, missing, seed = self.trained[:stage], self.x, self.missing, self.options.seed
        if missing is not None and stage > 0:
            draws = torch.Generator(x.device).manual_seed(seed)
            x = draw_missing(below[0], x, missing, COMPLETING_SWEEPS, draws)
        states = _states_of_layer(below, x, seed)
        machine = _machine_of_layer(self.machine, stage)
        machine.layers[0].fit_to(states, self.weights)
        self.trained.append(machine)
        if missing is not None and stage == 0:  # filled in by the trainer
            states = states.masked_fill(missing.view(*missing.shape, *[1] * (x.dim() - 2)), torch.nan)
        monitor = self.options.monitor or Monitor()
        if stage > 0:  # the data are samples, whose solutions and log-likelihood are of no interest
            monitor = Monitor(n_starts=0, n_rows=monitor.n_rows, every=monitor.every)
        options = replace(self.options, epochs=self.pretrain_epochs, validation=None, monitor=monitor)
        self.current = Trainer(machine, states, options)
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
            machine = _machine_of_layer(self.machine, layer_index)
            machine.load_state_dict(tensors_under(f"layer.{layer_index}.", tensors))
            self.trained.append(machine)
        self.machine.load_state_dict(tensors_under("deep.", tensors))
        if stage < self.n_stages:
            self.trained.pop()  # `_enter` creates this machine again, and the trainer restores it
        self._enter(stage).restore(TrainingState(tensors, state.values["trainer"]))


@usual_modes()
def pretrain(
    machine: BoltzmannMachine,
    x: Tensor,
    options: TrainingOptions | None = None,
    *,
    all_layers: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **changes: Any,
) -> History:
    """Pretrain the layers of a deep machine one after the other, in place.

    By default, only the first hidden layer is trained. Continue with `fit(machine, x, warm_start=True)`, which keeps
    the priors of the visible units.

    Args:
        machine: Machine with at least two hidden layers.
        x: Training data, shape (N, n_visible).
        options: Options of training each layer (default: 20 epochs, and otherwise those of `fit`). The monitor measures
            the first layer's machine; solutions and log-likelihoods of the other machines are not measured.
        all_layers: Whether to train all layers, as in the paper [alg:dbmTrain] (default: False).
        callbacks: Functions called with the deep machine and the record after each epoch.
        progress: See `fit`.
        **changes: Options by name, as in `fit`.

    Returns:
        History with one record per epoch. The entry `layer` is the number of the hidden layer that was trained.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, fit, pretrain
        >>> x = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.3).float()
        >>> machine = dbm([Binary(8), Binary(4), Binary(3)])
        >>> pretrain(machine, x, epochs=2, all_layers=True)["layer"]
        [1.0, 1.0, 2.0, 2.0]
        >>> history = fit(machine, x, epochs=1, warm_start=True)
    """
    options = TrainingOptions.changed(options, changes)
    epochs = DEFAULT_EPOCHS if options.epochs is None else options.epochs
    trainer = PretrainingTrainer(machine, x, replace(options, epochs=0), epochs, all_layers)
    return run_epochs(trainer, [partial(callback, machine) for callback in callbacks], progress=progress)


def _machine_of_layer(deep: BoltzmannMachine, stage: int) -> BoltzmannMachine:
    """Copy layers `stage` and `stage + 1` of a deep machine to a restricted machine."""
    weights = deep.weights[stage]
    machine = rbm(deepcopy(deep.layers[stage]), deepcopy(deep.layers[stage + 1]), weights.detach().clone())
    machine.weights[0].requires_grad_(weights.requires_grad)
    return machine


@torch.no_grad()
def _states_of_layer(below: Sequence[BoltzmannMachine], x: Tensor, seed: int) -> Tensor:
    """Draw states of the next layer given the data, by sampling upward through the machines of all lower layers."""
    generator = torch.Generator(x.device).manual_seed(seed)
    for machine in below:
        x = torch.cat([upward(machine, [part], independently(machine, generator))[1] for part in x.split(CHUNK_ROWS)])
    return x


@torch.no_grad()
def _assemble(deep: BoltzmannMachine, trained: Sequence[BoltzmannMachine]) -> None:
    """Copy the parameters of the restricted machines trained so far into the deep machine."""
    for stage, machine in enumerate(trained):
        if stage == 0:
            _copy_parameters(machine.layers[0], deep.layers[0])
        _copy_parameters(machine.layers[1], deep.layers[stage + 1])
        deep.weights[stage].copy_(machine.weights[0].detach())


def _copy_parameters(source: Units, target: Units) -> None:
    targets, sources = ((*units.parameters(), *units.buffers()) for units in (target, source))
    for to, value in zip(targets, sources, strict=True):
        to.copy_(value)
