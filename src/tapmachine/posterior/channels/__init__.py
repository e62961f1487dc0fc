"""Noisy channels P(y|x), which convert observations y into evidence about states x."""

from tapmachine.posterior.channels.base import Channel, Evidence, Observed, Unknown
from tapmachine.posterior.channels.evidence import check_alphabet, check_numbers, state_evidence, tilt_evidence
from tapmachine.posterior.channels.states import BinaryErasure, BinarySymmetric, Missing
from tapmachine.posterior.channels.values import CustomNoise, GaussianNoise, PoissonNoise

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
    "check_alphabet",
    "check_numbers",
    "state_evidence",
    "tilt_evidence",
]
