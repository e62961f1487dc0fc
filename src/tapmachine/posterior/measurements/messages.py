"""Normal messages between the parts of a recovery."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.kinds import LOG_2PI

LOWEST, HIGHEST = 1e-2, 1e6  # precisions of components, in units of those of the start
SMALLEST_SHARE = 1e-6  # of a precision that is the same for all components


class Message(NamedTuple):
    """A normal message exp(hx − ½γx²) about K vectors.

    Attributes:
        field: h, (K, n).
        precision: γ, (K, 1) if it is the same for all components, or (K, n).
    """

    field: Tensor
    precision: Tensor

    def times(self, other: "Message") -> "Message":
        """The product of two messages."""
        return Message(self.field + other.field, self.precision + other.precision)

    def damped(self, old: "Message", share: Tensor) -> "Message":
        """A message between an old one and this one."""
        return Message(torch.lerp(old.field, self.field, share), torch.lerp(old.precision, self.precision, share))


class Limits(NamedTuple):
    """Least and largest precision of messages about single components.

    Moments that are broader than the message that produced them, as those of units with two states can be, would make a
    precision negative; and those of units that are certain would make it infinite.
    """

    lowest: float
    highest: float

    @classmethod
    def around(cls, variance: Tensor) -> "Limits":
        """Limits for components with about these variances."""
        scale = max(float(variance.mean()), torch.finfo(torch.float32).tiny)
        return cls(LOWEST / scale, HIGHEST / scale)


def returned(moments: Moments, received: Message, per_component: bool, limits: Limits) -> Message:
    """The normal distribution of some moments divided by the message that produced them.

    Args:
        moments: mean and variance of each component, (K, n).
        received: the message that produced them.
        per_component: whether each component has its own precision.
        limits: of the precision.
    """
    mean, variance = moments
    variance = variance if per_component else variance.mean(1, keepdim=True)
    total = 1 / variance.clamp(min=1 / limits.highest)
    lowest = torch.full_like(total, limits.lowest) if per_component else SMALLEST_SHARE * total
    precision = torch.maximum(total - received.precision, lowest)
    return Message(mean * (precision + received.precision) - received.field, precision)


def log_normal(message: Message) -> Tensor:  # (K,), float64
    """ln ∫ exp(hx − ½γx²) dx, summed over the components."""
    field, precision = (z.double() for z in message)
    return 0.5 * (field**2 / precision - precision.log() + LOG_2PI).sum(1)
