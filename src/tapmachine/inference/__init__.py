"""Schemes, and the solver that finds their fixed points."""

from tapmachine.inference.adaptive_tap import AdaptiveTAP
from tapmachine.inference.mean_field import TAP, NaiveMeanField, Scheme, ThirdOrderTAP
from tapmachine.inference.message_passing import BeliefPropagation, RelaxedBP
from tapmachine.inference.solve import Progress, solve
from tapmachine.inference.starts import noisy_start, random_start

__all__ = [
    "TAP",
    "AdaptiveTAP",
    "BeliefPropagation",
    "NaiveMeanField",
    "Progress",
    "RelaxedBP",
    "Scheme",
    "ThirdOrderTAP",
    "noisy_start",
    "random_start",
    "solve",
]
