"""Unit types of Boltzmann machines, such as `Binary` and `Gaussian`."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from tapmachine.units.registry import UNIT_TYPES

if TYPE_CHECKING:
    from tapmachine.units.base import Units as Units
    from tapmachine.units.binary import Binary as Binary
    from tapmachine.units.binary import Spin as Spin
    from tapmachine.units.categorical import Categorical as Categorical
    from tapmachine.units.custom import Custom as Custom
    from tapmachine.units.gaussian import Gaussian as Gaussian
    from tapmachine.units.mixed import Mixed as Mixed
    from tapmachine.units.poisson import Poisson as Poisson
    from tapmachine.units.spike_slab import SpikeSlab as SpikeSlab
    from tapmachine.units.support import FiniteSet as FiniteSet
    from tapmachine.units.support import Interval as Interval
    from tapmachine.units.support import Lattice as Lattice
    from tapmachine.units.support import Simplex as Simplex
    from tapmachine.units.truncated_gauss_bernoulli import TruncatedGaussBernoulli as TruncatedGaussBernoulli
    from tapmachine.units.truncated_gaussian import TruncatedGaussian as TruncatedGaussian

# Classes are imported on first access. The registry does not need torch, which keeps --help fast.
_HOMES = {unit_type.home.partition(":")[2]: unit_type.home for unit_type in UNIT_TYPES.values()}
_HOMES |= {"Custom": "tapmachine.units.custom:Custom", "Mixed": "tapmachine.units.mixed:Mixed"}
_HOMES |= {"Units": "tapmachine.units.base:Units"}
_HOMES |= {name: f"tapmachine.units.support:{name}" for name in ("FiniteSet", "Interval", "Lattice", "Simplex")}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tapmachine.units' has no attribute {name!r}")
    value = globals()[name] = resolve_name(_HOMES[name])
    return value
