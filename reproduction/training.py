"""Training of the paper's machines, by the default procedure or with the algorithms as printed in the paper."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer

from reproduction.models import Model
from tapmachine.beliefs import Tilt
from tapmachine.data.rows import Rows, held_in_memory
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.runs.data import RunData
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import Prepared
from tapmachine.solver import TAP, Scheme
from tapmachine.tables.machine import make_machine
from tapmachine.tables.units import make_visible
from tapmachine.training import CD, Monitor, Objective, TAPObjective, Trainer, TrainingOptions
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, free_energy_from, unique_weights
from tapmachine.training.objectives import Start, from_batch
from tapmachine.training.optimizers import geometric_decay, momentum_sgd
from tapmachine.training.pretraining import PretrainingTrainer

PRINTED_SWEEPS = {False: 41, True: 5}  # maximum per step (one sweep, then ten times four), by whether runs are quick


@dataclass(frozen=True)
class Procedure:
    """One switch for each difference between the paper and this package, whose choices are the defaults."""

    printed_iteration: bool = False  # Alg. 1: explicit sweeps without damping; the default is implicit and accelerated
    unique_solutions: bool = False  # average the gradient over distinct solutions instead of particles
    field_momentum: bool = True  # momentum on the parameters of the units; Alg. 2 applies it to the weights only
    rescale: bool = True  # rescale real-valued data before training; Table I uses values in [0, 1]
    centered: bool = False  # center gradients if the units support it; the paper does not

    def scheme(self) -> Scheme:
        """Return the scheme used to find solutions."""
        return TAP("explicit", 0.0) if self.printed_iteration else TAP()

    def switched(self, names: Sequence[str]) -> "Procedure":
        """Return the procedure with some switches that differ from their defaults."""
        return replace(self, **{name: not getattr(Procedure(), name) for name in names})

    def differences(self) -> dict[str, bool]:
        """Return the switches that differ from their defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Procedure(), name)}

    @property
    def name(self) -> str:
        """Name of the procedure as part of a directory name; empty for the default procedure."""
        if self == AS_PRINTED:
            return "as-printed"
        return "-".join(name.replace("_", "-") if value else f"no-{name}" for name, value in self.differences().items())


SWITCHES = tuple(asdict(Procedure()))  # the first four are those of the paper
AS_PRINTED = Procedure().switched(SWITCHES[:4])


@final
class UniqueSolutions(Objective):
    """TAP objective in which F is averaged over the distinct solutions, so that each solution counts once."""

    scheme: Scheme

    def __init__(self, start: Start, n_particles: int, n_sweeps: int, scheme: Scheme) -> None:
        self.start, self.n_particles, self.n_sweeps, self.scheme = start, n_particles, n_sweeps, scheme
        self.can_be_captured = scheme.can_be_captured
        self.gains_by_compilation = True

    def prepare(self, context: Context) -> Carry:  # noqa: D102
        return ()

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:  # noqa: D102
        with torch.no_grad():
            x = self.start(context, self.n_particles)
        moments, values = free_energy_from(context.machine, x, self.scheme, self.n_sweeps, context.compile_sweeps)
        return average(values, unique_weights(context.machine, moments, None)), carry


def noisy_batch(context: Context, n_particles: int, fraction: float = 0.1) -> Tensor:
    """Return the rows of the batch, with a fraction of the units replaced by draws from their priors."""
    x = from_batch(context, n_particles)
    drawn = context.machine.layers[0].sample(Tilt(torch.zeros_like(x), 0.0), context.generator)
    chance = torch.rand(x.shape, generator=context.generator, device=x.device)
    return torch.where(chance < fraction, drawn, x)


def objective_of(model: Model, procedure: Procedure, n_sweeps: int) -> Objective:
    """Return the training objective of a model."""
    if model.sampled:
        return CD(n_sweeps)
    start = noisy_batch if model.noisy_starts else from_batch
    if procedure.unique_solutions:
        return UniqueSolutions(start, model.particles, n_sweeps, procedure.scheme())
    return TAPObjective(model.particles, n_sweeps, procedure.scheme(), merged=False, start=start)


def prepared(
    model: Model, procedure: Procedure, settings: Settings, data: RunData[Rows], device: torch.device | str
) -> Prepared:
    """Create the machine of a model and its trainer, for `run_training`."""
    assert data.held_out is not None
    assert settings.learning_rate is not None
    rate = settings.learning_rate
    units = None if procedure.rescale else make_visible(settings, data.train, data.held_out)[0]
    new = make_machine(settings, data.train, data.held_out, units, seed=settings.seed)
    machine = new.machine.to(device)
    x, held_out = (check_rows(machine, held_in_memory(new.scaled(rows))) for rows in (data.train, data.held_out))

    def optimizer(own: BoltzmannMachine) -> Optimizer:
        sgd = momentum_sgd(own, rate, settings.momentum, settings.weight_decay)
        if not procedure.field_momentum:
            sgd.param_groups[1]["momentum"] = 0.0
        return sgd

    epochs = settings.epochs or 0
    options = TrainingOptions(
        epochs=epochs,
        batch_size=settings.batch_size,
        objective=objective_of(model, procedure, settings.n_sweeps or 1),
        optimizer=optimizer,
        validation=held_out,
        early_stopping=False,
        centered=settings.centered,
        averaged=False,
        seed=settings.seed,
        monitor=Monitor(every=settings.measure_every, scale=new.scale, shift=new.shift),
    )
    if settings.pretrain_epochs:
        return settings, new, PretrainingTrainer(machine, x, options, settings.pretrain_epochs, all_layers=True)
    sgd = optimizer(machine)
    scheduler = geometric_decay(sgd, settings.decay, max(1, epochs))
    return settings, new, Trainer(machine, x, options, optimizer=sgd, scheduler=scheduler)
