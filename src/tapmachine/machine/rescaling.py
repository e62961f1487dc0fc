"""Conversion of machines to other units of measurement."""

from copy import deepcopy
from math import isfinite

import torch
from torch import Tensor

from tapmachine.machine.boltzmann import BoltzmannMachine


@torch.no_grad()
def rescale(machine: BoltzmannMachine, scale: float, shift: Tensor | float = 0.0) -> BoltzmannMachine:
    """Convert a machine to other units of measurement: visible states x become shift + scale·x.

    If the scale is a power of two and the shift is 0, no parameter is rounded.

    Args:
        machine: A layered machine with real-valued visible units; not modified.
        scale: Scale factor, greater than 0.
        shift: A number, or one per visible unit; must be 0 for `TruncatedGaussBernoulli`.

    Returns:
        A machine that assigns the converted states the probability that the original machine assigns the states.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> from tapmachine.machine import rescale
        >>> rescale(rbm(TruncatedGaussian(4, 0.0, 1.0), Binary(2)), 256.0).layers[0]
        TruncatedGaussian(n=4, lower=0, upper=256)
    """
    if machine.is_pairwise:
        raise ValueError("rescale: a pairwise machine has no separate visible layer")
    if not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}; expected a finite number greater than 0")
    visible, *others = machine.layers
    weights = [machine.weights[0] / scale, *(w.detach() for w in machine.weights[1:])]
    result = BoltzmannMachine([visible.rescaled(scale, shift), *deepcopy(others)], weights)
    result.last_learning_rate = machine.last_learning_rate
    shift = torch.as_tensor(shift).to(machine.device, torch.float64)
    if shift.any():  # subtract its contribution to the hidden units' fields
        field = result.layers[1].prior_field
        if field is None:
            raise ValueError(f"rescale: {type(others[0]).__name__} units have no field to absorb a shift")
        field.sub_((shift.expand(visible.n) @ weights[0].double()).to(field.dtype).view_as(field))
    return result
