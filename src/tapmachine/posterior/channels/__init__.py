"""Noisy channels P(y|x), which convert observations y into evidence about states x."""

from tapmachine.posterior.channels.base import Channel, Evidence, UnknownParameter
from tapmachine.posterior.channels.evidence import check_alphabet, state_evidence, tilt_evidence
from tapmachine.posterior.channels.states import BinarySymmetric, Erasure, Missing
from tapmachine.posterior.channels.values import CustomNoise, GaussianNoise, PoissonNoise

__all__ = [
    "BinarySymmetric",
    "Channel",
    "CustomNoise",
    "Erasure",
    "Evidence",
    "GaussianNoise",
    "Missing",
    "PoissonNoise",
    "UnknownParameter",
    "check_alphabet",
    "state_evidence",
    "tilt_evidence",
]
