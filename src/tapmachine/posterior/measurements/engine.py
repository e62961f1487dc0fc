"""Base class for message-passing engines."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.operators import Operator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior

SLOWER, FASTER = 0.7, 1.1  # factors of the weight if the change in the moments has increased or decreased

State = TypeVar("State", bound=Any)  # a nested tuple of tensors with layers, tilt, speed and change


class Engine(ABC, Generic[State]):
    """Base class for iterations that exchange messages between measurements and a machine.

    Args:
        prior: Machine to use as the prior of the signals.
        operator: Measurement operator F, which is the same for all signals.
        channel: Measurement model of y given z.
        y: Measurements, of shape (K, M), with NaN for missing measurements.
        noise_variance: Variance of the noise on z, of shape (K, 1).
    """

    def __init__(
        self, prior: MachinePrior, operator: Operator, channel: Measurements, y: Tensor, noise_variance: Tensor
    ) -> None:
        self.prior, self.operator, self.channel, self.noise_variance = prior, operator, channel, noise_variance
        self.seen = ~torch.isnan(y)
        self.y, self.bias = torch.where(self.seen, y, 1.0), channel.bias.to(y)

    @abstractmethod
    def begin(self, layers: Layers) -> State:
        """Compute the initial state of all signals from initial moments of all layers."""

    @abstractmethod
    def step(self, state: State, rows: Tensor) -> State:
        """Compute the next state of the signals with the indices `rows`."""

    @abstractmethod
    def free_energy(self, state: State, tilted: Tensor, rows: Tensor) -> Tensor:  # (K,)
        """Compute −ln ∫ exp(−E(x)) P(y|x) dx in the Bethe approximation.

        Args:
            state: State of the signals.
            tilted: Free energy F of the tilted machine, of shape (K,).
            rows: Indices of the signals.
        """

    @abstractmethod
    def about_outputs(self, state: State, rows: Tensor) -> Moments:  # (K, M)
        """Compute the posterior mean and variance of z = Fx + b."""


def adapted(speed: Tensor, change: Tensor, last_change: Tensor, slowest: float) -> Tensor:  # (K,)
    """Compute the weight of the new values in the next iteration.

    The weight increases if the moments changed less than in the previous iteration, and decreases otherwise.
    """
    return (speed * torch.where(change < last_change, FASTER, SLOWER)).clamp(slowest, 1.0)
