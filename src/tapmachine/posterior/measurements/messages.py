"""Normal messages exchanged by the message-passing engines."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.kinds import LOG_2PI

LOWEST, HIGHEST = 1e-2, 1e6  # precisions of components, relative to the initial ones
SMALLEST_SHARE = 1e-6  # smallest precision, relative to the lower limit for single components


class Message(NamedTuple):
    """Normal messages exp(hx − ½γx²) about K vectors.

    Attributes:
        field: Field h, of shape (K, n).
        precision: Precision γ, of shape (K, n), or (K, 1) if it is the same for all components.
    """

    field: Tensor
    precision: Tensor

    def times(self, other: "Message") -> "Message":
        """Return the product of two messages."""
        return Message(self.field + other.field, self.precision + other.precision)

    def damped(self, old: "Message", weight: Tensor) -> "Message":
        """Interpolate between an old message and this message.

        Args:
            old: Old message.
            weight: Weight of this message, from 0 to 1.
        """
        return Message(torch.lerp(old.field, self.field, weight), torch.lerp(old.precision, self.precision, weight))


class Limits(NamedTuple):
    """Smallest and largest precision of messages about single components.

    Without limits, a precision can become negative if a variance is larger than that of the incoming message, which is
    possible for two-state units. It can become infinite if a variance is 0.
    """

    lowest: float
    highest: float

    @classmethod
    def around(cls, variance: Tensor) -> "Limits":
        """Create limits for components with variances of similar magnitude."""
        scale = max(float(variance.mean()), torch.finfo(torch.float32).tiny)
        return cls(LOWEST / scale, HIGHEST / scale)


def returned(moments: Moments, received: Message, per_component: bool, limits: Limits) -> Message:
    """Compute an outgoing message, the normal distribution with the posterior moments divided by the incoming message.

    Args:
        moments: Posterior mean and variance of each component, of shape (K, n).
        received: Incoming message that was used to compute the moments.
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
    """Compute ln ∫ exp(hx − ½γx²) dx, summed over the components."""
    field, precision = (z.double() for z in message)
    return 0.5 * (field**2 / precision - precision.log() + LOG_2PI).sum(1)
