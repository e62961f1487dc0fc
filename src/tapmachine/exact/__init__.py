"""Machines whose visible units are a finite mixture, with exact densities, conditional distributions and samples."""

from tapmachine.exact.conditioned import Conditioned
from tapmachine.exact.mixture import HiddenUnits, Mixture
from tapmachine.exact.parts import Part, row_groups
from tapmachine.exact.recognize import closed_log_partition, mixture_of

__all__ = ["Conditioned", "HiddenUnits", "Mixture", "Part", "closed_log_partition", "mixture_of", "row_groups"]
