"""Machines of data in other units of measurement."""

from copy import deepcopy
from math import isfinite

import torch
from torch import Tensor

from tapmachine.machine.boltzmann import BoltzmannMachine


@torch.no_grad()
def rescale(machine: BoltzmannMachine, scale: float, shift: Tensor | float = 0.0) -> BoltzmannMachine:
    """Convert a machine to data in other units of measurement: visible states x become shift + scale·x.

    With a power of two and no shift, no parameter is rounded.

    Args:
        machine: a machine with layers and real-valued visible units; it is not changed.
        scale: the factor, greater than 0.
        shift: a number, or one for each visible unit; must be 0 for `TruncatedGaussBernoulli`.

    Returns:
        A machine under which the converted states are as likely as the states are under the original one.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> from tapmachine.machine import rescale
        >>> rescale(rbm(TruncatedGaussian(4, 0.0, 1.0), Binary(2)), 256.0).layers[0]
        TruncatedGaussian(n=4, lower=0, upper=256)
    """
    if machine.is_pairwise:
        raise ValueError("rescale: a pairwise machine has no separate visible layer")
    if not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}; it must be greater than 0, and finite")
    visible, *others = machine.layers
    weights = [machine.weights[0] / scale, *(w.detach() for w in machine.weights[1:])]
    result = BoltzmannMachine([visible.rescaled(scale, shift), *deepcopy(others)], weights)
    result.last_learning_rate = machine.last_learning_rate
    shift = torch.as_tensor(shift).to(machine.device, torch.float64)
    if shift.any():  # what it adds to the hidden units' fields is taken out of them
        field = result.layers[1].prior_field
        if field is None:
            raise ValueError(f"rescale: {type(others[0]).__name__} units have no field that could take up a shift")
        field.sub_((shift.expand(visible.n) @ weights[0].double()).to(field.dtype).view_as(field))
    return result
