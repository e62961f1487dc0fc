"""F of a machine clamped to data or samples, and the sweeps towards F of a free one; differentiable, and without a look
at values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.conditioning import give_again, hidden_given
from tapmachine.inference import TAP, Scheme
from tapmachine.inference.process import Process, over_tensors
from tapmachine.inference.solve import fitting_batch
from tapmachine.inference.starts import prior_moments
from tapmachine.machine import BoltzmannMachine

ROOT_STEPS = 3  # Newton steps for each root of an implicit sweep: they start from the last one's
CLAMPED_SWEEPS = 10  # to solve a machine of several hidden layers that is clamped to data


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean, in which values count as much as their weights; 0 if all of those are 0."""
    if weights is None:
        return values.mean()
    return (weights * values).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def clamped_free_energy(
    machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None, hidden: BoltzmannMachine | None = None
) -> Tensor:  # (M,)
    """F of the machine clamped to each row, differentiable: exact with one hidden layer or none, else by the scheme.

    Args:
        machine: any machine.
        x: states of the visible layer.
        scheme: `TAP()` unless given.
        hidden: of several hidden layers, what `hidden_given` made of as many rows, to be used anew: a step that is
            compiled can make no modules.
    """
    layers = machine.units()
    own = -layers[0].log_prior_of_rows(x)
    if machine.is_pairwise:
        flat = x.flatten(1)
        return own - 0.5 * ((flat @ machine.coupling(0)) * flat).sum(-1)
    if len(layers) == 2:
        return own - layers[1].log_partition_of_rows(machine.field_on(1, [x, None]))
    scheme = scheme or TAP()
    if hidden is None:
        hidden = hidden_given(machine, x, validate=False)
    else:
        give_again(hidden, machine, x)
    moments, tilts = sweep_from(hidden, None, scheme, CLAMPED_SWEEPS)
    # hidden_given holds its field xW fixed; F falls by the mean of the units with it.
    sent = ((x.flatten(1) @ machine.weights[0]) * moments[0].mean.flatten(1)).sum(-1)
    return torch.as_tensor(own + scheme.free_energy(hidden, moments, tilts) - (sent - sent.detach()))


def summed_over_odd_layers(machine: BoltzmannMachine, chain: Sequence[Tensor]) -> tuple[Tensor, dict[int, Tensor]]:
    """F of a machine with layers, those of even numbers clamped to states and the others summed over exactly, (K,),
    differentiable; and the fields on those of odd numbers.
    """
    layers = machine.units()
    fields = {number: machine.field_on(number, chain) for number in range(1, len(layers), 2)}
    total = -layers[0].log_prior_of_rows(chain[0])
    for number in range(2, len(layers), 2):
        total = total - layers[number].log_prior_of_rows(chain[number])
    for number, field in fields.items():
        total = total - layers[number].log_partition_of_rows(field)
    return total, fields


@torch.no_grad()
def sweep_from(
    machine: BoltzmannMachine, x: Tensor | None, scheme: Scheme, n_sweeps: int
) -> tuple[list[Moments], list[Tilt]]:
    """Moments of all layers after some sweeps, and the tilts to evaluate F with.

    Args:
        machine: any machine.
        x: means of the lowest layer to start from; its prior's moments, for each row of evidence, if None.
        scheme, n_sweeps: as for `TAPObjective`.
    """
    layers, process = machine.units(), scheme.bind(machine)
    may_look = machine.device.type == "cpu" and not torch.compiler.is_compiling()
    if not may_look:
        process.root_steps = ROOT_STEPS

    def sweep(lowest: Moments) -> tuple[list[Moments], list[Tilt]]:
        state = process.begin(layers, [lowest, *[None] * (len(layers) - 1)])
        for _ in range(_n_steps(process, n_sweeps)):
            state, _ = process.step(layers, state)
        return process.beliefs(layers, state)

    if x is None:
        return sweep(prior_moments(layers[0], machine.n_rows or 1))
    few = may_look and machine.n_rows is None  # on a CPU few at a time stay in cache
    parts = x.split(fitting_batch(machine, process)) if few else [x]
    found = [sweep(Moments(part, torch.zeros_like(part))) for part in parts]
    joined: tuple[list[Moments], list[Tilt]] = over_tensors(lambda *z: torch.cat(z), *found) if found[1:] else found[0]
    return joined


def _n_steps(process: Process, n_sweeps: int) -> int:
    """Steps that make so many sweeps, the first of which is made in the beginning."""
    return -(-(n_sweeps - 1) // process.sweeps_per_step)
