"""Base class of the message-passing engines."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.operators import Operator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior

SLOWER, FASTER = 0.7, 1.1  # factors of this weight if the change of the moments has grown or shrunk

State = TypeVar("State", bound=Any)  # a nested tuple of tensors with layers, tilt, speed and change


class Engine(ABC, Generic[State]):
    """An iteration between measurements and a machine, for signals that share a matrix.

    Args:
        prior: The machine.
        operator: F.
        channel: Measurement model of y given z.
        y: Measurements, (K, M), NaN if not observed.
        noise_variance: Variance of the noise on z, (K, 1).
    """

    def __init__(
        self, prior: MachinePrior, operator: Operator, channel: Measurements, y: Tensor, noise_variance: Tensor
    ) -> None:
        self.prior, self.operator, self.channel, self.noise_variance = prior, operator, channel, noise_variance
        self.seen = ~torch.isnan(y)
        self.y, self.bias = torch.where(self.seen, y, 1.0), channel.bias.to(y)

    @abstractmethod
    def begin(self, layers: Layers) -> State:
        """Initial state of all signals, from moments of all layers."""

    @abstractmethod
    def step(self, state: State, rows: Tensor) -> State:
        """Next state of some of the signals, by their indices."""

    @abstractmethod
    def free_energy(self, state: State, tilted: Tensor, rows: Tensor) -> Tensor:  # (K,)
        """−ln ∫ exp(−E(x)) P(y|x) dx in the Bethe approximation, from F of the tilted machine."""

    @abstractmethod
    def about_outputs(self, state: State, rows: Tensor) -> Moments:  # (K, M)
        """Mean and variance of z = Fx + b given the measurements."""


def adapted(speed: Tensor, change: Tensor, last_change: Tensor, slowest: float) -> Tensor:  # (K,)
    """Weight of the new values in the next iteration: larger if the moments change less than before, else smaller."""
    return (speed * torch.where(change < last_change, FASTER, SLOWER)).clamp(slowest, 1.0)
