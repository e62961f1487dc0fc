"""Unit types of Boltzmann machines, such as `Binary` and `Gaussian`."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

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
    from tapmachine.units.spike_slab import TruncatedGaussBernoulli as TruncatedGaussBernoulli
    from tapmachine.units.support import FiniteSet as FiniteSet
    from tapmachine.units.support import Interval as Interval
    from tapmachine.units.support import Lattice as Lattice
    from tapmachine.units.support import Simplex as Simplex
    from tapmachine.units.truncated_gaussian import TruncatedGaussian as TruncatedGaussian

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
