"""Registry of unit types, keyed by command-line name. This module does not import torch, which keeps `--help` fast."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapmachine.units.base import Units


@dataclass(frozen=True)
class UnitType:
    """Description of a unit type: the location of its class and the arguments of its constructor.

    Attributes:
        home: Location of the class, as `module:name`.
        hidden: Whether the unit type can be used in hidden layers of a training run.
        hidden_bounds: Bounds of hidden units, if the constructor takes bounds.
        states: Name of the attribute that stores the number of states, if the constructor takes a number of states.
        bounds: Names of the tensors that store the bounds, if the constructor takes a lower and an upper bound.
        contains_zero: Whether 0 must lie between the bounds.
        raw_bytes: Whether bytes in a file are states, rather than intensities to be scaled to [0, 1].
    """

    home: str
    hidden: bool = False
    hidden_bounds: tuple[float, float] = (-1.0, 1.0)
    states: str | None = None
    bounds: tuple[str, str] | None = None
    contains_zero: bool = False
    raw_bytes: bool = False

    def load(self) -> "Callable[..., Units]":
        """Import and return the class of the unit type."""
        unit_class: Callable[..., Units] = resolve_name(self.home)
        return unit_class

    def make(self, n: int, n_states: int, bounds: tuple[Any, Any]) -> "Units":
        """Create units of this type; the number of states and the bounds are ignored if the class does not use them."""
        states = () if self.states is None else (n_states,)
        return self.load()(n, *states, *(() if self.bounds is None else bounds))

    def make_hidden(self, n: int) -> "Units":
        """Create hidden units of this type."""
        return self.make(n, 0, self.hidden_bounds)


UNIT_TYPES: dict[str, UnitType] = {
    "binary": UnitType("tapmachine.units.binary:Binary", hidden=True),
    "spin": UnitType("tapmachine.units.binary:Spin", hidden=True),
    "gaussian": UnitType("tapmachine.units.gaussian:Gaussian", hidden=True),
    "spike-slab": UnitType("tapmachine.units.spike_slab:SpikeSlab", hidden=True),
    "truncated-gaussian": UnitType(
        "tapmachine.units.truncated_gaussian:TruncatedGaussian", hidden=True, bounds=("lower", "upper")
    ),
    "gauss-bernoulli": UnitType(
        "tapmachine.units.spike_slab:TruncatedGaussBernoulli",
        hidden=True,
        bounds=("slab.lower", "slab.upper"),
        contains_zero=True,
    ),
    "poisson": UnitType("tapmachine.units.poisson:Poisson", raw_bytes=True),
    "categorical": UnitType("tapmachine.units.categorical:Categorical", states="q", raw_bytes=True),
}


def word_for(units: "Units") -> str | None:
    """Return the command-line name of the unit type; None if it is not part of the package."""
    return next((word for word, unit_type in UNIT_TYPES.items() if unit_type.load() is type(units)), None)


def visible_words() -> tuple[str, ...]:
    """Return the names of the visible unit types, and `auto`, which infers the type from the data."""
    return ("auto", *UNIT_TYPES)


def hidden_words() -> tuple[str, ...]:
    """Return the names of the hidden unit types, and `auto`, which depends on the visible units."""
    return ("auto", *(word for word, unit_type in UNIT_TYPES.items() if unit_type.hidden))
