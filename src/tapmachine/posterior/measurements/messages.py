"""Normal messages between the parts of a recovery."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.kinds import LOG_2PI

LOWEST, HIGHEST = 1e-2, 1e6  # precisions of components, relative to the initial ones
SMALLEST_SHARE = 1e-6  # smallest precision relative to a common one of all components


class Message(NamedTuple):
    """A normal message exp(hx − ½γx²) about K vectors.

    Attributes:
        field: h, (K, n).
        precision: γ, (K, 1) if it is the same for all components, or (K, n).
    """

    field: Tensor
    precision: Tensor

    def times(self, other: "Message") -> "Message":
        """Product of two messages."""
        return Message(self.field + other.field, self.precision + other.precision)

    def damped(self, old: "Message", share: Tensor) -> "Message":
        """Interpolate between an old message and this one."""
        return Message(torch.lerp(old.field, self.field, share), torch.lerp(old.precision, self.precision, share))


class Limits(NamedTuple):
    """Smallest and largest precision of messages about single components.

    Moments that are broader than the message that produced them, which is possible for two-state units, would make a
    precision negative; those of units that are certain would make it infinite.
    """

    lowest: float
    highest: float

    @classmethod
    def around(cls, variance: Tensor) -> "Limits":
        """Limits for components with about these variances."""
        scale = max(float(variance.mean()), torch.finfo(torch.float32).tiny)
        return cls(LOWEST / scale, HIGHEST / scale)


def returned(moments: Moments, received: Message, per_component: bool, limits: Limits) -> Message:
    """Normal distribution with some moments, divided by the message that produced them.

    Args:
        moments: Mean and variance of each component, (K, n).
        received: The message that produced them.
        per_component: Whether each component has a separate precision.
        limits: Limits of the precision.
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
