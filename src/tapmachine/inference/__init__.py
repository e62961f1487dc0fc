"""Mean-field schemes and the solver that finds their fixed points."""

from tapmachine.inference.mean_field import TAP, NaiveMeanField, Scheme, ThirdOrderTAP
from tapmachine.inference.solve import Progress, solve
from tapmachine.inference.starts import noisy_start, random_start

__all__ = ["TAP", "NaiveMeanField", "Progress", "Scheme", "ThirdOrderTAP", "noisy_start", "random_start", "solve"]
