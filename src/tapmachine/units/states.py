"""Properties that follow from the support of a unit type: shapes, bounds and enumeration of its states."""

from functools import cached_property

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.units.checks import Checked
from tapmachine.units.support import REAL_LINE, Lattice, Simplex, Support


class Supported(Checked):
    """A layer of `n` units with values in a support."""

    n: int
    _bounded: bool | None = None

    @property
    def support(self) -> Support:
        """Values that each unit can take; the real line by default.

        A class attribute is sufficient: `support = Lattice()`. Conditioned units have the support of the original
        units.
        """
        return REAL_LINE

    @cached_property
    def is_categorical(self) -> bool:
        """Whether states are one-hot vectors: fields, means and states then have shape (..., n, q)."""
        return isinstance(self.support, Simplex)

    @cached_property
    def has_two_states(self) -> bool:
        """Whether each unit takes two numbers as values, like `Binary` and `Spin`."""
        return self.support.n_states == 2 and not self.is_categorical

    @cached_property
    def has_counts(self) -> bool:
        """Whether some units are counts, whose priors TAP's reaction may make unnormalizable."""
        return isinstance(self.support, Lattice)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The trailing shape of states, fields and means: (n,), or (n, q) for units with q states."""
        return (self.n, self.support.n_states or 1) if self.is_categorical else (self.n,)

    @property
    def unit_starts(self) -> list[int]:
        """Index of each unit in tensors of shape (..., n)."""
        return list(range(self.n))

    @property
    def categorical_blocks(self) -> list[tuple[int, int, int]]:
        """First component, number of units and number of states of each block of units with one-hot states."""
        return [(0, self.n, self.support.n_states or 1)] if self.is_categorical else []

    def per_unit(self, terms: Tensor) -> Tensor:  # (..., *state_shape) -> (..., n)
        """Terms of the components of states, summed over each unit."""
        return terms.sum(-1) if self.is_categorical else terms

    def finite(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Whether field and precision of a tilt are finite."""
        field, precision = self.unpack(tilt)
        finite = torch.isfinite(field) & torch.isfinite(precision)
        return finite.all(-1) if self.is_categorical else finite

    # ----- bounds

    def bounds(self) -> tuple[Tensor, Tensor]:  # each () or state_shape
        """Smallest and largest value of a component of a state; possibly infinite."""
        lower, upper = self.support.bounds
        return self._scalar(lower), self._scalar(upper)

    def _scalar(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self.dtype, device=self.device)  # a copy to a GPU cannot be captured

    def is_bounded(self) -> bool:
        """Whether all bounds are finite. Cached, since reading values synchronizes with a GPU."""
        if self._bounded is None:
            self._bounded = all(bool(torch.isfinite(bound).all()) for bound in self.bounds())
        return self._bounded

    def tail_precision(self) -> Tensor:  # (n,)
        """V of the tails exp(−½Vx²) of the priors of units on the whole real line; infinite for all others.

        Two layers of units with such tails have a finite Z only if their couplings are weak enough.
        """
        return torch.full((self.n,), torch.inf, dtype=self.dtype, device=self.device)

    def check_means(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Validate means and return them in the units' dtype; a ValueError names the first one outside the support."""
        mean = self.as_states(mean)
        lower, upper = self.bounds()
        inside = (mean >= lower) & (mean <= upper) & torch.isfinite(mean)
        bounds = "" if lower.dim() or upper.dim() else f", from {lower:g} to {upper:g}"
        self.reject(~inside, mean, "x", f"it must lie inside the support{bounds}")
        return mean

    # ----- enumeration

    def n_states(self) -> list[int] | None:
        """Number of values that each unit can take; None if infinite."""
        count = self.support.n_states
        return None if count is None else [count] * self.n

    def decode(self, digits: Tensor) -> Tensor:  # (..., n), int64 -> (..., *state_shape)
        """States with the given indices: from 0 to `n_states` − 1 each, or 0, 1, 2, … on a lattice."""
        return self.support.decode(digits, self.dtype)

    def atoms(self) -> Tensor | None:  # (n_atoms,)
        """Values of an interval that have nonzero probability; None if there are none.

        There `log_prior` is the logarithm of a probability, elsewhere of a density.
        """
        values = self.support.atoms
        return torch.stack([self._scalar(value) for value in values]) if values else None
