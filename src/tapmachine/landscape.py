"""Landscape of a machine's solutions: search, counts, embedding in a plane, and changes during training."""

from tapmachine.analysis.landscape import *
from tapmachine.analysis.landscape import __all__ as __all__
