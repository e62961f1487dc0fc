"""Noisy channels P(y|x), which convert observations y into evidence about states x."""

from tapmachine.posterior.channels import *
from tapmachine.posterior.channels import __all__ as __all__
