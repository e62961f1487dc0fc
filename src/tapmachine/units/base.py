"""The one abstract class behind every unit type."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.special import wide
from tapmachine.units.checks import Checked, Values, in_parts
from tapmachine.units.roots import bracketed_root

__all__ = ["SMALLEST_SPREAD", "Units", "Values", "column_moments", "sum_over_rows"]

FIELD_DOUBLINGS = 24  # from one over the standard deviation: larger fields are never needed
FIELD_HALVINGS = 36
SMALLEST_SPREAD = 0.01  # of a typical column: the least deviation that a constant column is given


class Units(Checked, ABC):
    """A layer of `n` independent units, each with a normalised prior P(x; θ).

    Everything that happens to a unit is a tilt, exp(Bx − ½Ax²), so a unit type is one function,
    `log_partition(tilt)` = ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx with Z(0,0) = 1, and what follows from it.

    A new unit type implements `check_states`, `log_prior`, `log_partition`, `sample` and `fit_to`. Its `moments`
    come from automatic differentiation of `log_partition` unless it overrides them for speed.
    Tensors are batch first, units last: (..., n). Results have the dtype and device of the parameters.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = self.as_count(n, "n", 1)
        self._bounded: bool | None = None

    # ----- what a unit type must say

    @abstractmethod
    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """The states as a tensor of the units' dtype, or a ValueError that names the first one off the support.

        `validate=False` checks shape and dtype but does not look at the values, which would stall a GPU.
        """

    @abstractmethod
    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """ln P(x; θ) of every unit; `validate` as in `check_states`."""

    @abstractmethod
    def log_partition(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx of every unit; +inf where it cannot be normalised."""

    @abstractmethod
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:  # (..., n) -> (..., n)
        """Independent exact draws from the tilted priors."""

    @abstractmethod
    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        """Sets the prior's parameters in place so that it fits the columns of x, and returns the units.

        Args:
            x: states, shape (rows, n).
            weights: a non-negative weight for each row.
            smoothing: number of pseudo-observations that keep the parameters of a constant column finite.
        """

    # ----- what follows

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The trailing shape of states, fields and means: (n,), or (n, q) for units with q states."""
        return (self.n,)

    def mean_in(self, field: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """The mean under a field alone, for chains: as exact as its dtype, and quick."""
        return self.moments(Tilt(field, 0.0)).mean

    def moments(self, tilt: Tilt) -> Moments:  # (..., n) -> (..., n)
        """Mean f_a = ∂ ln Z/∂B and variance f_c = ∂² ln Z/∂B² under the tilt [eq:fa], [eq:fc]."""
        if len(self.state_shape) > 1:
            raise NotImplementedError(f"{type(self).__name__}: units with vectors for states need moments of their own")
        field, precision = self.unpack(tilt)
        differentiable = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            if not differentiable:
                field, precision = field.detach().clone(), precision.detach().clone()
            field = field if field.requires_grad else field.clone().requires_grad_()
            log_partition = self.log_partition(Tilt(field, precision))
            (mean,) = torch.autograd.grad(log_partition.sum(), field, create_graph=True)
            (variance,) = torch.autograd.grad(mean.sum(), field, create_graph=differentiable)
        return Moments(mean, variance) if differentiable else Moments(mean.detach(), variance)

    def log_partition_and_moments(self, tilt: Tilt) -> tuple[Tensor, Moments]:
        """`log_partition` and `moments` together, for unit types where that saves work."""
        return self.log_partition(tilt), self.moments(tilt)

    def per_unit(self, terms: Tensor) -> Tensor:  # (..., *state_shape) -> (..., n)
        """Terms of the components of states, summed for each unit."""
        return terms.sum(-1) if len(self.state_shape) > 1 else terms

    def normalisable(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Where the tilted prior can be normalised: the tilt is finite and, on an unbounded support, falls off.

        Elsewhere the units on unbounded supports have inf for ln Z, the mean's size and the variance.
        """
        field, precision = self.unpack(tilt)
        finite = torch.isfinite(field) & torch.isfinite(precision)
        return finite.all(-1) if len(self.state_shape) > 1 else finite

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:  # (..., n) -> (...), float64
        """Σ ln Z(after, 0) − Σ ln Z(before, 0) over the units, for two fields without a precision."""
        gain = self.log_partition(Tilt(after, 0.0)) - self.log_partition(Tilt(before, 0.0))
        return gain.sum(-1).double()

    @torch.no_grad()
    def field_with_mean(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """The field B with f_a(B, 0) = mean, for means inside the support; 0 for units that no field moves.

        By bisection, f_a being monotone: good to about nine digits of the field, limited where it would be infinite.
        """
        at_rest = self.moments(Tilt(torch.zeros_like(mean), 0.0))
        scale = at_rest.variance.sqrt()
        moves = scale > 0
        step = torch.where(moves & torch.isfinite(scale), 1 / scale, 1.0)
        direction = torch.where(at_rest.mean < mean, 1.0, -1.0)

        def falls_short(field: Tensor) -> Tensor:
            return (self.moments(Tilt(field, 0.0)).mean - mean) * direction < 0

        low, high = torch.zeros_like(step), step
        for _ in range(FIELD_DOUBLINGS):
            short = falls_short(direction * high)
            low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
        for _ in range(FIELD_HALVINGS):
            middle = 0.5 * (low + high)
            short = falls_short(direction * middle)
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        return torch.where(moves, direction * low, 0.0)

    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "Units":
        """Units for shift + scale·x, equally likely; a ValueError if they would not be of the same type."""
        raise ValueError(f"{type(self).__name__}: states cannot be multiplied by a number and stay states")

    # ----- inside a machine: the neighbours' field has mean θ and variance κ, which reacts on the unit itself

    def bounds(self) -> tuple[Tensor, Tensor]:  # each () or state_shape
        """The smallest and the largest value that a component of a state may take; infinite where there is none."""
        infinity = torch.full((), torch.inf, dtype=self.dtype, device=self.device)
        return -infinity, infinity

    def is_bounded(self) -> bool:
        """Whether all bounds are finite. Looked at once, since a look stalls a GPU."""
        if self._bounded is None:
            self._bounded = all(bool(torch.isfinite(bound).all()) for bound in self.bounds())
        return self._bounded

    def check_means(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Means as a tensor of the units' dtype, or a ValueError that names the first one outside the support."""
        mean = self.as_states(mean)
        lower, upper = self.bounds()
        inside = (mean >= lower) & (mean <= upper) & torch.isfinite(mean)
        bounds = "" if lower.dim() or upper.dim() else f", from {lower:g} to {upper:g}"
        self.reject(~inside, mean, "x", f"it must lie inside the support{bounds}")
        return mean

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:  # (..., n) -> (..., n)
        """Relative entropy of the tilted prior, Ba − ½A(a² + c) − ln Z(B,A), given its moments; 0 without a tilt."""
        mean, variance = moments
        exponent = tilt.field * mean - 0.5 * tilt.precision * (mean**2 + variance)
        return self.per_unit(exponent) - self.log_partition(tilt)

    def log_prior_of_rows(self, x: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln P(x; θ) of all units of each row together, of states that are not looked at."""
        return self.log_prior(x, validate=False).sum(-1)

    def log_partition_of_rows(self, field: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln Z(B,0) of all units of each row together."""
        nothing = torch.zeros_like(field)
        # A relative entropy without its term Ba, which unit types have in a cheap form.
        return -self.divergence(Tilt(field, 0.0), Moments(nothing, nothing)).sum(-1)

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        """The moments under the tilt B = θ − κ·mean, A = precision − κ: one explicit update [alg:rbmInf].

        Args:
            field: θ = ΣWa', of shape (..., *state_shape).
            reaction: κ = ΣW²c', the variance of that field; for units with q states its covariance, (..., n, q, q).
            mean: the present mean of the units.
            precision: of evidence on the units, apart from what the neighbours send.
        """
        return self.moments(Tilt(field - reaction * mean, precision - reaction))

    def settle(
        self,
        field: Tensor,
        reaction: Tensor,
        start: Tensor,
        precision: Tensor | float = 0.0,
        steps: int | None = None,
    ) -> tuple[Moments, Tensor]:
        """The moments with mean = f_a(θ − κ·mean, precision − κ), and the field B = θ − κ·mean under which they arise.

        That is the exact minimum of the TAP free energy over these units with the others fixed. It is unique.

        Args:
            field, reaction, precision: as in `respond`.
            start: a guess of B, usually the last one.
            steps: number of Newton steps; without it, until the root is accurate, which looks at the values.
        """

        def moments(b: Tensor) -> Moments:
            return self.moments(Tilt(b, precision - reaction))

        return bracketed_root(moments, field, reaction, start, self.bounds(), steps)

    # ----- conditioning and enumeration

    @property
    def n_rows(self) -> int | None:
        """How many rows of evidence the units are conditioned on; None if it is the same for every particle."""
        return None

    def rows(self, index: Tensor) -> "Units":
        """The units for some of the rows of evidence; themselves, if it is the same for every particle."""
        return self

    def hold(self, x: Tensor) -> Tensor:
        """The states, with units that are clamped put where they are held."""
        return x

    def n_states(self) -> list[int] | None:
        """The number of values that each unit can take; None if the support is not a finite set."""
        return None

    def is_countable(self) -> bool:
        """Whether the values of a unit can be numbered: finitely many, or infinitely many such as 0, 1, 2, …

        `log_prior` is then the logarithm of a probability, not of a density, and `decode` gives the values by number.
        The default knows finite sets only: unit types with infinitely many separate values return True here, implement
        `decode` for the numbers 0, 1, 2, … and leave `n_states` as it is.
        """
        return self.n_states() is not None

    def atoms(self) -> Tensor | None:  # (n_atoms,)
        """Values that have a probability of their own on a support that is not a finite set; None, if there are none.

        There `log_prior` is the logarithm of a probability, elsewhere of a density.
        """
        return None

    def decode(self, digits: Tensor) -> Tensor:  # (..., n), int64 -> (..., *state_shape)
        """The states with the given numbers, from 0 to `n_states` − 1 each; 0, 1, 2, … for a countable support."""
        raise NotImplementedError(f"{type(self).__name__}: decode() is not implemented; it must give states by number")


def sum_over_rows(term: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Tensor) -> Tensor:
    """Σ term(x, w) over rows in float64, some of them at a time: all would take several times the memory of the data.

    Args:
        term: of some rows, (M, *state_shape), and their weights, of as many dimensions.
        x: states, (rows, *state_shape).
        weights: of the rows, (rows,).
    """
    parts = in_parts(x)
    weights = weights.view(-1, *[1] * (x.dim() - 1))
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for z, w in zip(parts, weights.split(len(parts[0])), strict=True):
        total = total + term(wide(z), wide(w)).sum(0)
    return total


def column_moments(x: Tensor, weights: Tensor, of_nonzero: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Total weight, mean and variance of every column in float64; a constant column has variance exactly 0.

    Args:
        x: shape (rows, n).
        weights: of the rows.
        of_nonzero: whether values that are exactly 0 are left out.
    """

    def counts(z: Tensor, w: Tensor) -> Tensor:
        return w * (z != 0) if of_nonzero else w

    count = sum_over_rows(counts, x, weights).expand(x.shape[1])
    seen = torch.where(count > 0, count, 1.0)
    mean = sum_over_rows(lambda z, w: counts(z, w) * z, x, weights) / seen
    variance = sum_over_rows(lambda z, w: counts(z, w) * (z - mean) ** 2, x, weights) / seen
    return count, mean, torch.where(variance > (1e-12 * mean) ** 2, variance, 0.0)
