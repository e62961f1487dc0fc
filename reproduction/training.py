"""Training of the paper's machines, by the default procedure or with the algorithms as printed in the paper."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from reproduction.models import Model
from reproduction.procedure import Procedure
from tapmachine.accelerator.distributed import World
from tapmachine.beliefs import Tilt
from tapmachine.data.rows import Rows, held_in_memory
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.runs.build import make_machine
from tapmachine.runs.data import RunData
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import Prepared
from tapmachine.solver import Scheme
from tapmachine.tables.units import make_visible
from tapmachine.training import CD, Monitor, Objective, Pretraining, TAPObjective, Trainer
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, free_energy_from, unique_weights
from tapmachine.training.optimizers import geometric_decay, momentum_sgd
from tapmachine.training.pretraining import PretrainingTrainer, monitor_of_layer
from tapmachine.training.starts import FromBatch, Start


@final
class UniqueSolutions(Objective):
    """TAP objective in which F is averaged over the distinct solutions, so that each solution counts once.

    Args:
        start: Initial states of the solutions.
        n_particles: Number of solutions, K.
        n_sweeps: Maximum number of sweeps.
        scheme: Mean-field scheme.
    """

    def __init__(self, start: Start, n_particles: int, n_sweeps: int, scheme: Scheme) -> None:
        self.start, self.n_particles, self.n_sweeps, self.scheme = start, n_particles, n_sweeps, scheme
        self.can_be_captured = scheme.can_be_captured
        self.gains_by_compilation = True

    def __repr__(self) -> str:
        return f"UniqueSolutions({self.start}, {self.n_particles}, {self.n_sweeps}, {self.scheme})"

    def prepare(self, context: Context) -> Carry:  # noqa: D102
        return self.start.prepare(context, self.n_particles)

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:  # noqa: D102
        context = context._replace(world=World())  # all particles are required to identify distinct solutions
        weights = self.start.weights(context, self.n_particles)
        with torch.no_grad():
            x, carry = self.start.begin(context, self.n_particles, carry)
        moments, values = free_energy_from(context.machine, x, self.scheme, self.n_sweeps, context.compile_sweeps)
        return average(values, unique_weights(context.machine, moments, weights)), carry


@final
class NoisyBatch(Start):
    """Start from the rows of the batch, with a fraction of the units replaced by draws from their priors.

    Args:
        fraction: Fraction of the units to replace (default: 0.1).
    """

    def __init__(self, fraction: float = 0.1) -> None:
        self.fraction = fraction

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:  # noqa: D102
        x, carry = FromBatch().begin(context, n_particles, carry)
        drawn = context.machine.layers[0].sample(Tilt(torch.zeros_like(x), 0.0), context.generator)
        chance = torch.rand(x.shape, generator=context.generator, device=x.device)
        return torch.where(chance < self.fraction, drawn, x), carry


def objective_of(model: Model, procedure: Procedure, n_sweeps: int) -> Objective:
    """Return the training objective of a model."""
    if model.sampled:
        return CD(n_sweeps)
    start = NoisyBatch() if model.noisy_starts else FromBatch()
    if procedure.unique_solutions:
        return UniqueSolutions(start, model.particles, n_sweeps, procedure.scheme())
    return TAPObjective(start, model.particles, n_sweeps, procedure.scheme(), merged=False)


def prepared_for(
    model: Model, procedure: Procedure
) -> Callable[[Settings, RunData[Rows], torch.device | str], Prepared]:
    """Return the function with which `run_training` creates a machine and its trainer."""

    def prepare(settings: Settings, data: RunData[Rows], device: torch.device | str) -> Prepared:
        assert data.held_out is not None
        assert settings.learning_rate is not None
        rate = settings.learning_rate
        units = None if procedure.rescale else make_visible(settings, data.train, data.held_out)[0]
        new = make_machine(settings, data.train, data.held_out, units)
        machine = new.machine.to(device)
        x, held_out = (check_rows(machine, held_in_memory(new.scaled(rows))) for rows in (data.train, data.held_out))
        monitor = Monitor(every=settings.measure_every, scale=new.scale, shift=new.shift)

        def trainer(
            own: BoltzmannMachine, x: Tensor, epochs: int, monitor: Monitor, validation: Tensor | None, warm: bool
        ) -> Trainer:
            optimizer = momentum_sgd(own, rate, settings.momentum, settings.weight_decay)
            if not procedure.field_momentum:
                optimizer.param_groups[1]["momentum"] = 0.0
            return Trainer(
                own,
                x,
                epochs=epochs,
                batch_size=settings.batch_size,
                objective=objective_of(model, procedure, settings.n_sweeps or 1),
                optimizer=optimizer,
                scheduler=geometric_decay(optimizer, settings.decay, max(1, epochs)),
                validation=validation,
                early_stopping=False,
                centered=settings.centered,
                averaged=False,
                seed=settings.seed,
                monitor=monitor,
                warm_start=warm,
                validate=False,
            )

        def layer(own: BoltzmannMachine, states: Tensor, stage: int) -> Trainer:
            return trainer(own, states, settings.pretrain_epochs, monitor_of_layer(monitor, stage, False), None, True)

        def joint() -> Trainer:
            return trainer(machine, x, settings.epochs or 0, monitor, held_out, settings.pretrain_epochs > 0)

        if settings.pretrain_epochs == 0:
            return settings, new, joint()
        pretraining = Pretraining(settings.pretrain_epochs, "all")
        return (
            settings,
            new,
            PretrainingTrainer(machine, x, pretraining, layer, joint, settings.epochs or 0, settings.seed),
        )

    return prepare
