"""Unit types: what a single variable of a machine can be. Each is one file."""

from tapmachine.units.base import Units
from tapmachine.units.binary import Binary, Spin
from tapmachine.units.categorical import Categorical
from tapmachine.units.custom import Custom
from tapmachine.units.gaussian import Gaussian
from tapmachine.units.truncated_gauss_bernoulli import TruncatedGaussBernoulli
from tapmachine.units.truncated_gaussian import TruncatedGaussian

__all__ = [
    "Binary",
    "Categorical",
    "Custom",
    "Gaussian",
    "Spin",
    "TruncatedGaussBernoulli",
    "TruncatedGaussian",
    "Units",
]
