"""Shapes, bounds and enumeration of states, derived from the support of a unit type."""

from functools import cached_property

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.units.checks import Checked
from tapmachine.units.support import REAL_LINE, Lattice, Simplex, Support


class Supported(Checked):
    """Base class for a layer of `n` units whose values lie in `support`."""

    n: int
    _bounded: bool | None = None

    @property
    def support(self) -> Support:
        """Set of values that each unit can take; the real line by default.

        Unit types can override this property with a class attribute, such as `support = Lattice()`. Conditioned units
        have the support of the original units.
        """
        return REAL_LINE

    @cached_property
    def is_categorical(self) -> bool:
        """Whether states are one-hot vectors, so that fields, means and states have shape (..., n, q)."""
        return isinstance(self.support, Simplex)

    @cached_property
    def has_two_states(self) -> bool:
        """Whether each unit has two numeric states, as in `Binary` and `Spin`."""
        return self.support.n_states == 2 and not self.is_categorical

    @cached_property
    def has_counts(self) -> bool:
        """Whether the layer contains count units, whose tilted priors may not be normalizable in TAP."""
        return isinstance(self.support, Lattice)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Trailing shape of states, fields and means: (n,), or (n, q) for units with q states."""
        return (self.n, self.support.n_states or 1) if self.is_categorical else (self.n,)

    @property
    def unit_starts(self) -> list[int]:
        """Index of each unit in tensors of shape (..., n)."""
        return list(range(self.n))

    @property
    def categorical_blocks(self) -> list[tuple[int, int, int]]:
        """First component, number of units and number of states for each block of categorical units."""
        return [(0, self.n, self.support.n_states or 1)] if self.is_categorical else []

    def per_unit(self, terms: Tensor) -> Tensor:  # (..., *state_shape) -> (..., n)
        """Sum terms over the components of each unit."""
        return terms.sum(-1) if self.is_categorical else terms

    def finite(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Return a mask of the units for which the field and the precision of a tilt are finite."""
        field, precision = self.unpack(tilt)
        finite = torch.isfinite(field) & torch.isfinite(precision)
        return finite.all(-1) if self.is_categorical else finite

    # ----- bounds

    def bounds(self) -> tuple[Tensor, Tensor]:  # each () or state_shape
        """Return the smallest and largest value of each component of the states, possibly infinite."""
        lower, upper = self.support.bounds
        return self._scalar(lower), self._scalar(upper)

    def _scalar(self, value: float) -> Tensor:
        # Filled on the device, since a copy to a GPU cannot be captured.
        return torch.full((), value, dtype=self.dtype, device=self.device)

    def is_bounded(self) -> bool:
        """Return whether all bounds are finite; cached, since reading values synchronizes with a GPU."""
        if self._bounded is None:
            self._bounded = all(bool(torch.isfinite(bound).all()) for bound in self.bounds())
        return self._bounded

    def tail_precision(self) -> Tensor:  # (n,)
        """Return the precision V of the tails exp(−½Vx²) of priors on the real line; infinite for all other priors.

        If two neighboring layers have Gaussian tails, Z is finite only if the couplings between them are weak enough.
        """
        return torch.full((self.n,), torch.inf, dtype=self.dtype, device=self.device)

    def check_means(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Validate means and return them in the units' dtype.

        Raises:
            ValueError: If a mean is outside the support; the message gives the index of the first invalid mean.
        """
        mean = self.as_states(mean)
        lower, upper = self.bounds()
        inside = (mean >= lower) & (mean <= upper) & torch.isfinite(mean)
        bounds = "" if lower.dim() or upper.dim() else f", {lower:g} to {upper:g}"
        self.reject(~inside, mean, "x", f"expected a mean inside the support{bounds}")
        return mean

    # ----- enumeration

    def n_states(self) -> list[int] | None:
        """Return the number of states of each unit; None if a unit has infinitely many states."""
        count = self.support.n_states
        return None if count is None else [count] * self.n

    def decode(self, digits: Tensor) -> Tensor:  # (..., n), int64 -> (..., *state_shape)
        """Convert state indices to states.

        Args:
            digits: State index of each unit, from 0 to `n_states` − 1, or any non-negative integer on a lattice.
        """
        return self.support.decode(digits, self.dtype)

    def atoms(self) -> Tensor | None:  # (n_atoms,)
        """Return the values of an interval that have nonzero probability; None if there are none.

        At these values, `log_prior` is the logarithm of a probability. Elsewhere, it is the logarithm of a density.
        """
        values = self.support.atoms
        return torch.stack([self._scalar(value) for value in values]) if values else None
