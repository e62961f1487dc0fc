"""Restricted machines for pretraining the layers of a deep machine.

Each restricted machine consists of two neighboring layers. `double_inputs` applies the correction of Salakhutdinov and
Hinton (2009): the lowest machine contains its visible units twice, and the highest machine contains its hidden units
twice. See `Pretraining`.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Units

CHUNK_ROWS = 10_000  # number of rows for which a layer is drawn at a time


def machine_of_layer(deep: BoltzmannMachine, stage: int, double_inputs: bool) -> BoltzmannMachine:
    """Copy layers `stage` and `stage + 1` of a deep machine to a restricted machine."""
    below, above = deepcopy(deep.layers[stage]), deepcopy(deep.layers[stage + 1])
    weights = deep.weights[stage].detach().clone()
    if double_inputs and stage == 0:
        below, weights = _twice(below), torch.cat((weights, weights))
    if double_inputs and stage == len(deep.layers) - 2:
        above, weights = _twice(above), torch.cat((weights, weights), 1)
    machine = rbm(below, above, weights)
    machine.weights[0].requires_grad_(deep.weights[stage].requires_grad)
    return machine


@torch.no_grad()
def states_of_layer(
    below: Sequence[BoltzmannMachine], x: Tensor, seed: int, double_inputs: bool, means: bool = False
) -> Tensor:
    """Draw states of the next layer given the data, by sampling upward through the machines of all lower layers.

    If `means` is True, the means of the next layer are returned instead of samples.
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    states = torch.cat((x, x), 1) if double_inputs else x
    for n_above, machine in enumerate(below, 1):
        parts = []
        for part in states.split(CHUNK_ROWS):
            tilt = Tilt(machine.field_on(1, [part, None]), 0.0)
            drawn = machine.layers[1].sample(tilt, generator)  # also for means, to draw the same random numbers
            parts.append(machine.layers[1].moments(tilt).mean if means and n_above == len(below) else drawn)
        states = torch.cat(parts)
    return states


@torch.no_grad()
def assemble(deep: BoltzmannMachine, trained: Sequence[BoltzmannMachine], double_inputs: bool) -> None:
    """Copy the parameters of the restricted machines trained so far into the deep machine."""
    layers, last = list(deep.layers), len(deep.layers) - 2
    for stage, machine in enumerate(trained):
        below, above = machine.layers
        weights = machine.weights[0].detach()
        if stage == 0:
            _copy_parameters(below, layers[0])
        _copy_parameters(above, layers[stage + 1])
        if double_inputs:
            weights = weights.unflatten(0, (2, -1)).mean(0) if stage == 0 else weights
            weights = weights.unflatten(1, (2, -1)).mean(1) if stage == last else weights
            weights = weights if stage in (0, last) else 0.5 * weights
            if stage > 0:
                _average_fields(trained[stage - 1].layers[1], below, layers[stage])
        deep.weights[stage].copy_(weights)


def _twice(units: Units) -> Units:
    """Return units that consist of two copies of the input units, one after the other."""
    copy, n = deepcopy(units), units.n
    for part in copy.modules():
        if isinstance(part, Units):
            part.n = 2 * n
        for z in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if z.dim() and len(z) == n:
                z.data = torch.cat((z.data, z.data))
    return copy


def _average_fields(first: Units, second: Units, target: Units) -> None:
    one, other, average = (units.prior_field for units in (first, second, target))
    if one is not None and other is not None and average is not None:
        average.copy_(0.5 * (one + other))


def _copy_parameters(source: Units, target: Units) -> None:
    """Copy parameters to a layer of the same size, or the mean of both halves to a layer of half the size."""
    targets, sources = ((*units.parameters(), *units.buffers()) for units in (target, source))
    for to, value in zip(targets, sources, strict=True):
        to.copy_(value if value.shape == to.shape else value.unflatten(0, (2, -1)).mean(0))
