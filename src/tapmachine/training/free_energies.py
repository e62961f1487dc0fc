"""Differentiable free energies F of machines clamped to data or samples, and of free machines after a few sweeps.

Tensor values are read only on a CPU, so that training steps can be compiled and captured.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tapmachine.accelerator.compilation import compiled
from tapmachine.beliefs import Moments, over_tensors
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.conditioning import hidden_machine, replace_rows
from tapmachine.solver import TAP, Scheme
from tapmachine.solver.driver import fitting_batch
from tapmachine.solver.merging import as_points
from tapmachine.solver.schemes.process import Process, State
from tapmachine.solver.starts import prior_moments

ROOT_STEPS = 3  # Newton steps for each root of an implicit sweep, starting from the root of the previous sweep
CLAMPED_SWEEPS = 10  # number of sweeps used to solve the hidden layers of a deep machine clamped to data
SAME = 0.05  # particles with a smaller distance (RMS over units, relative to their support) are one solution


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """Weighted mean of values, or 0 if all weights are 0."""
    if weights is None:
        return values.mean()
    return (weights * values).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def mixture(machine: BoltzmannMachine, moments: Sequence[Moments], values: Tensor, weights: Tensor | None) -> Tensor:
    """Free energy of the mixture of distinct solutions, −ln Σ e^{−F}, a scalar.

    The result is also differentiable through the weights e^{−F}. If c particles are within `SAME` of each other, each
    of these particles contributes e^{−F}/c.

    Args:
        machine: Machine that was solved.
        moments: Moments of all layers for each particle.
        values: Free energy F of each particle, shape (K,).
        weights: Weight of each particle, shape (K,); None for equal weights. If particles of the same solution have the
            same F, the result depends only on which weights are positive.
    """
    return -(unique_weights(machine, moments, weights).log() - values).logsumexp(0)


@torch.no_grad()
def unique_weights(machine: BoltzmannMachine, moments: Sequence[Moments], weights: Tensor | None) -> Tensor:  # (K,)
    """Return particle weights that sum to 1 over the particles of each distinct solution, shape (K,).

    See `mixture` for the arguments.
    """
    points = as_points(machine, list(moments))  # in float64, regardless of the precision of matrix products
    near = (torch.cdist(points, points) <= SAME).to(points.dtype)
    weights = torch.ones_like(points[:, 0]) if weights is None else weights.to(points.dtype)
    weights = torch.where(weights.sum() > 0, weights, 1.0)
    return weights / (near @ weights).clamp(min=torch.finfo(points.dtype).tiny)


def clamped_free_energy(
    machine: BoltzmannMachine,
    x: Tensor,
    scheme: Scheme | None = None,
    hidden: BoltzmannMachine | None = None,
    compile_sweeps: bool = False,
) -> Tensor:  # (M,)
    """Free energy F of the machine clamped to each row, shape (M,), differentiable.

    With one hidden layer, F is exact: F(x) = −ln P(x; U) − Σ_j ln Z_j(xW). Here P is the prior of the visible units,
    and Z_j is the partition function of hidden unit j in the field xW. For pairwise machines, F is also exact. With
    several hidden layers, the scheme computes F for a machine that consists of the hidden layers only, with the field
    xW on the first hidden layer.

    Args:
        machine: Machine of any type.
        x: States of the visible layer, shape (M, *state_shape).
        scheme: Mean-field scheme for several hidden layers (default: `TAP()`).
        hidden: Output of `hidden_machine` for the same number of rows (default: created by this function). Compiled
            steps must pass `hidden`, because they cannot create modules.
        compile_sweeps: Whether to compile the sweeps of machines with several hidden layers (default: False).
    """
    layers = list(machine.layers)
    on_visible = -layers[0].log_prior_of_rows(x)
    if machine.is_pairwise:
        flat = x.flatten(1)
        return on_visible - 0.5 * ((flat @ machine.coupling(0)) * flat).sum(-1)
    if len(layers) == 2:
        return on_visible - layers[1].log_partition_of_rows(machine.field_on(1, [x, None]))
    scheme = scheme or TAP()
    if hidden is None:
        hidden = hidden_machine(machine, x, validate=False)
    else:
        replace_rows(hidden, machine, x)
    moments, value = free_energy_from(hidden, None, scheme, CLAMPED_SWEEPS, compile_sweeps)
    # `hidden` keeps the field xW fixed, so the gradient of −xWa, its contribution to F, is added here.
    sent = ((x.flatten(1) @ machine.weights[0]) * moments[0].mean.flatten(1)).sum(-1)
    return torch.as_tensor(on_visible + value - (sent - sent.detach()))


def summed_over_odd_layers(
    machine: BoltzmannMachine, chain: Sequence[Tensor], fields: dict[int, Tensor]
) -> Tensor:  # (K,)
    """Free energy F with even layers clamped to states and odd layers summed over exactly, shape (K,), differentiable.

    Args:
        machine: Machine of any type; a pairwise machine has no odd layers.
        chain: States of all layers; those of the odd layers are not used.
        fields: Fields that the even layers exert on each odd layer, by its index.
    """
    if machine.is_pairwise:
        return clamped_free_energy(machine, chain[0])
    layers = list(machine.layers)
    total = -layers[0].log_prior_of_rows(chain[0])
    for index in range(2, len(layers), 2):
        total = total - layers[index].log_prior_of_rows(chain[index])
    for index, field in fields.items():
        total = total - layers[index].log_partition_of_rows(field)
    return total


def free_energy_from(
    machine: BoltzmannMachine, x: Tensor | None, scheme: Scheme, n_sweeps: int, compile_sweeps: bool = False
) -> tuple[list[Moments], Tensor]:
    """Return the moments of all layers after `n_sweeps` sweeps, and the differentiable free energy F, shape (K,).

    Args:
        machine: Machine of any type.
        x: Initial means of the lowest layer. If None, the sweeps start from the moments of the prior, for each row of
            evidence.
        scheme, n_sweeps: See `TAPObjective`.
        compile_sweeps: Whether to compile the sweeps (default: False).
    """
    process, state = _swept(machine, x, scheme, n_sweeps, compile_sweeps)
    return process.moments(state), scheme.free_energy_of_state(machine, process, state)


def finite_free_energy_from(
    machine: BoltzmannMachine, x: Tensor, scheme: Scheme, n_sweeps: int, compile_sweeps: bool = False
) -> tuple[list[Moments], Tensor, Tensor | None]:
    """Compute `free_energy_from`, replacing particles with a non-finite F.

    A particle with a non-finite F is replaced by a copy of the first particle with a finite F. `mixture` counts copies
    only once. Excluding a particle by a weight of 0 is not sufficient, because its gradient would still be NaN.
    Selecting the finite particles would require reading their number, which a captured step cannot do. If more than
    half of the particles have a non-finite F, all values are NaN, and the training step is undone.

    Particles are replaced only in machines with count units, for which F is non-finite where TAP's reaction term makes
    a prior unnormalizable. For other units, a non-finite F means that a training step was too large and has to be
    undone.

    Returns:
        The moments of all layers, the free energy of each particle, shape (K,), and the index of the particle used in
        place of each particle, shape (K,), or None if no particle was replaced.
    """
    process, state = _swept(machine, x, scheme, n_sweeps, compile_sweeps)
    may_read, has_counts = _may_read(machine), any(units.has_counts for units in machine.layers)
    if may_read or not has_counts:
        values = scheme.free_energy_of_state(machine, process, state)
        if not has_counts or bool(torch.isfinite(values).all()):
            return process.moments(state), values, None
    with torch.no_grad():
        finite = torch.isfinite(scheme.free_energy_of_state(machine, process, state))
        kept = torch.where(finite, torch.arange(len(x), device=x.device), finite.to(torch.uint8).argmax())
        state = over_tensors(lambda z: z[kept], state)
    values = scheme.free_energy_of_state(machine, process, state)
    enough = 2 * finite.sum() >= len(x)
    return process.moments(state), torch.where(enough, values, torch.nan), kept


@torch.no_grad()
def _swept(
    machine: BoltzmannMachine, x: Tensor | None, scheme: Scheme, n_sweeps: int, compile_sweeps: bool = False
) -> tuple[Process, State]:
    """Return the solver process of a machine and its state after `n_sweeps` sweeps."""
    layers, process = list(machine.layers), scheme.bind(machine)
    may_read = _may_read(machine)
    if not may_read or compile_sweeps:
        process.root_steps = ROOT_STEPS
    step = compiled(process.step) if compile_sweeps else process.step

    def sweep(lowest: Moments) -> State:
        state = process.begin(layers, [lowest, *[None] * (len(layers) - 1)])
        for _ in range(_n_steps(process, n_sweeps)):
            state, _ = step(layers, state)
        return state

    if x is None:
        return process, sweep(prior_moments(layers[0], machine.n_rows or 1))
    few = may_read and machine.n_rows is None  # on a CPU, a few particles at a time fit into the cache
    parts = x.split(fitting_batch(machine, process)) if few else [x]
    swept = [sweep(Moments(part, torch.zeros_like(part))) for part in parts]
    return process, over_tensors(lambda *z: torch.cat(z), *swept) if swept[1:] else swept[0]


def _may_read(machine: BoltzmannMachine) -> bool:
    """Return whether tensor values can be read at no cost.

    Reading a value synchronizes a GPU, and compiled code cannot read values.
    """
    return machine.device.type == "cpu" and not torch.compiler.is_compiling()


def _n_steps(process: Process, n_sweeps: int) -> int:
    """Number of steps for `n_sweeps` sweeps, the first of which is performed by `begin`."""
    return -(-(n_sweeps - 1) // process.sweeps_per_step)
