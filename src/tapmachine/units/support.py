"""Sets of values that a unit can take: a finite set, a lattice, an interval, or the corners of a simplex.

Every unit type has a `support`, which the rest of the package queries instead of the class of the units. A new unit
type defines it in one line of its class, such as `support = Lattice()` or `support = FiniteSet((-1, 0, 1))`; bounds,
the number of states and the states themselves follow from it. All four have

- `n_states`: number of values; None if infinite,
- `is_countable`: whether `log_prior` is the logarithm of a probability rather than of a density,
- `atoms`: values of an interval that have nonzero probability,
- `bounds`: smallest and largest value of a component, possibly infinite,
- `decode`: states with the indices 0, 1, 2, …, (..., n) -> (..., *state_shape).
"""

from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tapmachine.data.checks import check_count


@dataclass(frozen=True)
class FiniteSet:
    """A finite set of numbers.

    Args:
        values: The numbers, in the order of their indices.
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise ValueError(f"FiniteSet: values are {self.values}; expected distinct numbers, at least one")

    @property
    def n_states(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return min(self.values), max(self.values)

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """States with the given indices."""
        return torch.tensor(self.values, dtype=dtype, device=digits.device)[digits]


@dataclass(frozen=True)
class Lattice:
    """An infinite set of evenly spaced numbers: start, start + step, start + 2·step, …; counts by default.

    Args:
        start: The number with index 0.
        step: The difference of successive numbers; negative for a lattice that extends downward.
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    n_states: ClassVar[None] = None
    start: float = 0.0
    step: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.start) and isfinite(self.step) and self.step != 0):
            raise ValueError(f"Lattice: expected a finite start and a finite step other than 0, got {self}")

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return (self.start, inf) if self.step > 0 else (-inf, self.start)

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """States with the given indices."""
        return self.start + self.step * digits.to(dtype)


@dataclass(frozen=True)
class Interval:
    """All numbers from `lower` to `upper`; the real line by default.

    Args:
        lower, upper: Bounds, possibly infinite. If they differ between the units of a layer, those of the interval that
            contains all of them; `Units.bounds` returns the bounds of each unit.
        atoms: Values with nonzero probability, at which `log_prior` is the logarithm of this probability.
    """

    is_countable: ClassVar[bool] = False
    n_states: ClassVar[None] = None
    lower: float = -inf
    upper: float = inf
    atoms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.lower < self.upper:
            raise ValueError(f"Interval: lower is {self.lower}, upper is {self.upper}; expected lower < upper")

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return self.lower, self.upper

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """States with the given indices."""
        raise NotImplementedError(f"the values of {self} cannot be enumerated")


@dataclass(frozen=True)
class Simplex:
    """The corners of a simplex: one-hot vectors, the states of categorical units.

    States, fields and means then have shape (..., n, n_states).

    Args:
        n_states: Number of corners, at least 2.
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    n_states: int

    def __post_init__(self) -> None:
        check_count("Simplex: n_states", self.n_states, 2)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return 0.0, 1.0

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """States with the given indices."""
        return one_hot(digits, self.n_states).to(dtype)


Support = FiniteSet | Lattice | Interval | Simplex

BITS = FiniteSet((0.0, 1.0))
SPINS = FiniteSet((-1.0, 1.0))
REAL_LINE = Interval()
