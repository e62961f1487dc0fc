"""Recovery of signals from measurements that mix their components, such as y = g(Fx + b + noise)."""

from tapmachine.posterior.measurements import *
from tapmachine.posterior.measurements import __all__ as __all__
