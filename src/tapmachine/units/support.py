"""Supports of unit types: finite sets, lattices, intervals, and the corners of a simplex.

The support of a unit type is the set of values that a unit can take. The rest of the package queries `support` rather
than the class of the units. A new unit type sets a class attribute, such as `support = Lattice()`, which determines the
bounds, the number of states and their enumeration. All four support classes have the following attributes and methods:

- `n_states`: Number of values; None if infinite.
- `is_countable`: Whether `log_prior` is the logarithm of a probability rather than of a density.
- `atoms`: Values of an interval that have nonzero probability.
- `bounds`: Smallest and largest value of a component, possibly infinite.
- `decode`: Method that converts state indices 0, 1, 2, … to states, (..., n) -> (..., *state_shape).
- `excludes`: Method that returns a mask of invalid values, given the bounds of the units.
- `requirement`: End of the error message for an invalid value.
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
    """Support that consists of finitely many numbers.

    Args:
        values: Distinct numbers; their order defines the state indices.

    Example:
        >>> from tapmachine.units import FiniteSet
        >>> FiniteSet((-1, 0, 1)).is_countable
        True
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise ValueError(f"FiniteSet: values is {self.values}; expected one or more distinct numbers")

    @property
    def n_states(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value in the support."""
        return min(self.values), max(self.values)

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert state indices to states."""
        return torch.tensor(self.values, dtype=dtype, device=digits.device)[digits]

    def excludes(self, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return a mask of the values outside of the support."""
        bad = x != self.values[0]
        for value in self.values[1:]:
            bad &= x != value
        return bad

    @property
    def requirement(self) -> str:
        """Description of valid values."""
        if self.n_states > 2:
            return "expected one of the values"
        return f"expected {' or '.join(f'{value:g}' for value in self.values)}"


@dataclass(frozen=True)
class Lattice:
    """Support that consists of infinitely many, evenly spaced numbers: start, start + step, start + 2·step, ….

    By default, the numbers are the counts 0, 1, 2, ….

    Args:
        start: First number, with state index 0 (default: 0).
        step: Difference between successive numbers (default: 1); negative for a lattice that extends downward.

    Example:
        >>> from tapmachine.units import Lattice
        >>> Lattice(step=2).is_countable  # 0, 2, 4, …
        True
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    n_states: ClassVar[None] = None
    start: float = 0.0
    step: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.start) and isfinite(self.step) and self.step != 0):
            raise ValueError(f"Lattice: expected a finite start and a finite, nonzero step, got {self}")

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value in the support."""
        return (self.start, inf) if self.step > 0 else (-inf, self.start)

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert state indices to states."""
        return self.start + self.step * digits.to(dtype)

    def excludes(self, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return a mask of the values outside of the support."""
        index = (x - self.start) / self.step
        return (index < 0) | (index != index.round()) | torch.isinf(index)

    @property
    def requirement(self) -> str:
        """Description of valid values."""
        are_counts = (self.start, self.step) == (0, 1)
        return "expected a non-negative integer" if are_counts else f"expected a value of {self}"


@dataclass(frozen=True)
class Interval:
    """Support that consists of all real numbers from `lower` to `upper`; the real line by default.

    Args:
        lower, upper: Bounds of the interval, possibly infinite. If the bounds differ between the units of a layer, use
            an interval that contains the supports of all units; `Units.bounds` returns the bounds of each unit.
        atoms: Values with nonzero probability. At an atom, `log_prior` is the logarithm of its probability.

    Example:
        >>> from tapmachine.units import Interval
        >>> Interval(0, 1).is_countable
        False
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
        """Smallest and largest value in the support."""
        return self.lower, self.upper

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert state indices to states."""
        raise NotImplementedError(f"the values of {self} cannot be enumerated")

    def excludes(self, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return a mask of the values outside of the bounds."""
        return ~((x >= lower) & (x <= upper) & torch.isfinite(x))

    @property
    def requirement(self) -> str:
        """Description of valid values."""
        has_bound = isfinite(self.lower) or isfinite(self.upper)
        return "expected a number between lower and upper" if has_bound else "expected a finite number"


@dataclass(frozen=True)
class Simplex:
    """Support of categorical units: one-hot vectors, the corners of a simplex.

    States, fields and means of categorical units have shape (..., n, n_states).

    Args:
        n_states: Number of corners, at least 2.

    Example:
        >>> from tapmachine import Categorical
        >>> Categorical(5, 3).support
        Simplex(n_states=3)
    """

    is_countable: ClassVar[bool] = True
    atoms: ClassVar[tuple[float, ...]] = ()
    n_states: int

    def __post_init__(self) -> None:
        check_count("Simplex: n_states", self.n_states, 2)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value in the support."""
        return 0.0, 1.0

    def decode(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert state indices to states."""
        return one_hot(digits, self.n_states).to(dtype)

    def excludes(self, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return a mask of the components that are neither 0 nor 1."""
        return BITS.excludes(x, lower, upper)

    @property
    def requirement(self) -> str:
        """Description of valid components."""
        return BITS.requirement


Support = FiniteSet | Lattice | Interval | Simplex

BITS = FiniteSet((0.0, 1.0))
SPINS = FiniteSet((-1.0, 1.0))
REAL_LINE = Interval()
