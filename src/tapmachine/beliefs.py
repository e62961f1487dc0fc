"""What is known about a layer of units: the tilt acting on it and the moments that follow."""

from typing import NamedTuple

from torch import Tensor


class Tilt(NamedTuple):
    """The factor exp(Bx − ½Ax²) that multiplies a unit's prior.

    Neighbours send it (the TAP fields), a noisy observation is one, and clamping is its limit.

    Attributes:
        field: B, a tensor of shape (..., n), or a number that applies to every unit.
        precision: A, likewise. It may be negative: in TAP, A = −Σ W² c ≤ 0.

    Both must be finite; where they are not, a unit type's `normalisable` is False.

    Example:
        >>> import torch
        >>> Tilt(field=torch.zeros(3), precision=0.0).field
        tensor([0., 0., 0.])
    """

    field: Tensor | float
    precision: Tensor | float


class Moments(NamedTuple):
    """Mean a and variance c of every unit under its tilted prior, each of shape (..., n).

    Example:
        >>> import torch
        >>> from tapmachine import Binary
        >>> Binary(2).moments(Tilt(torch.zeros(2), 0.0)).mean
        tensor([0.5000, 0.5000], grad_fn=<SigmoidBackward0>)
    """

    mean: Tensor
    variance: Tensor
