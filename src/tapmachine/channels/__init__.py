"""Noisy channels: what an observation y says about the states x that it comes from."""

from tapmachine.channels.base import Channel, Evidence, Observed, Unknown
from tapmachine.channels.states import BinaryErasure, BinarySymmetric, Missing
from tapmachine.channels.values import CustomNoise, GaussianNoise, PoissonNoise

__all__ = [
    "BinaryErasure",
    "BinarySymmetric",
    "Channel",
    "CustomNoise",
    "Evidence",
    "GaussianNoise",
    "Missing",
    "Observed",
    "PoissonNoise",
    "Unknown",
]
