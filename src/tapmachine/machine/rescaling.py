"""Conversion of machines to different units of measurement."""

from copy import deepcopy
from math import isfinite

import torch
from torch import Tensor

from tapmachine.machine.boltzmann import BoltzmannMachine


@torch.no_grad()
def rescale(machine: BoltzmannMachine, scale: float, shift: Tensor | float = 0.0) -> BoltzmannMachine:
    """Return a machine for visible states in different units of measurement, shift + scale·x instead of x.

    If the scale is a power of two and the shift is 0, the conversion is exact.

    Args:
        machine: A machine with hidden units and real-valued visible units, which is not modified.
        scale: Positive scale factor.
        shift: Shift, a number or a tensor of shape (n_visible,) (default: 0). Units with an atom at 0 cannot be
            shifted.

    Returns:
        A machine that assigns to each converted state the probability of the original state under `machine`.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> from tapmachine.machine import rescale
        >>> rescale(rbm(TruncatedGaussian(4, 0.0, 1.0), Binary(2)), 256.0).layers[0]
        TruncatedGaussian(n=4, lower=0, upper=256)
    """
    if machine.is_pairwise:
        raise ValueError("rescale: expected a machine with hidden units, got a pairwise machine")
    if not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}; expected a finite number greater than 0")
    visible, *others = machine.layers
    weights = [machine.weights[0] / scale, *(w.detach() for w in machine.weights[1:])]
    result = BoltzmannMachine([visible.rescaled(scale, shift), *deepcopy(others)], weights)
    result.last_learning_rate = machine.last_learning_rate
    shift = torch.as_tensor(shift).to(machine.device, torch.float64)
    if shift.any():  # subtract the contribution of the shift to the fields of the hidden units
        field = result.layers[1].prior_field
        if field is None:
            raise ValueError(
                f"rescale: a shift changes the hidden fields, but {type(others[0]).__name__} units have no field"
            )
        field.sub_((shift.expand(visible.n) @ weights[0].double()).to(field.dtype).view_as(field))
    return result
