"""Base class for all unit types, with five abstract methods.

The properties of the states follow from `support` (`units/states.py`). Unit types may override optional methods for
speed (`units/fast_paths.py`).
"""

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.fast_paths import FastPaths
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.third_cumulants import Slopes, slopes


class Units(FastPaths, ABC):
    """A layer of `n` independent units, each with a normalized prior P(x; θ).

    Neighbors and evidence act on a unit through a tilt exp(Bx − ½Ax²). A unit type is therefore defined by one
    function, ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx with Z(0,0) = 1, which `log_partition` computes. The mean and
    the variance of a unit are derivatives of ln Z.

    A new unit type implements the five abstract methods and declares its `support`, which is the real line by default.
    Examples are `support = Interval(0, 1)`, `FiniteSet((-1, 0, 1))`, `Lattice()` for counts, and `Simplex(q)`. By
    default, moments are computed by automatic differentiation of `log_partition`. If the prior is proportional to
    exp(Ux) with a parameter U, name this parameter `field`, which allows training to center the units. Tensors have the
    batch dimensions first and the units last: (..., n). Results have the dtype and device of the parameters.

    Args:
        n: Number of units.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = self.as_count(n, "n", 1)

    # ----- methods to implement

    @abstractmethod
    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """Validate states and return them in the units' dtype.

        Args:
            x: States, of shape (..., n).
            validate: Whether to check the values, which synchronizes with a GPU. If False, only the shape and the dtype
                are checked.

        Raises:
            ValueError: If a value is not in the support; the message gives the index of the first invalid value.
        """

    @abstractmethod
    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """Compute the log-prior ln P(x; θ) of every unit.

        Args:
            x: States, of shape (..., n).
            validate: Whether to check the values of x; see `check_states`.
        """

    @abstractmethod
    def log_partition(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """Compute ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx for every unit; +inf if the integral diverges."""

    @abstractmethod
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:  # (..., n) -> (..., n)
        """Draw independent, exact samples from the tilted priors."""

    @abstractmethod
    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        """Fit the parameters of the priors to the columns of x, in place, and return the units.

        Args:
            x: States, of shape (rows, n).
            weights: Non-negative weights of the rows, of shape (rows,) (default: equal weights).
            smoothing: Number of pseudo-observations (default: 1). They keep the parameters of constant columns finite.
        """

    # ----- derived quantities

    def moments(self, tilt: Tilt) -> Moments:  # (..., n) -> (..., n)
        """Compute the mean f_a = ∂ ln Z/∂B and the variance f_c = ∂² ln Z/∂B² under a tilt [eq:fa], [eq:fc]."""
        if self.is_categorical:
            raise NotImplementedError(f"{type(self).__name__}: a unit type with one-hot states must implement moments")
        differentiable = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            field, precision = self._differentiable(tilt, differentiable)
            log_partition = self.log_partition(Tilt(field, precision))
            (mean,) = torch.autograd.grad(log_partition.sum(), field, create_graph=True)
            (variance,) = torch.autograd.grad(mean.sum(), field, create_graph=differentiable)
        return Moments(mean, variance) if differentiable else Moments(mean.detach(), variance)

    def third_cumulant(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """Compute the third cumulant κ₃ = ∂f_c/∂B = ∂³ ln Z/∂B³ under a tilt, the mean of (x − a)³.

        The third cumulant is not defined for units with one-hot states. By default, it is computed by automatic
        differentiation of `moments`. The result is differentiable with respect to the tilt and the parameters. It is 0
        if the tilted prior cannot be normalized.
        """
        if self.is_categorical:
            raise NotImplementedError(f"{type(self).__name__}: units with one-hot states have no third cumulant")
        differentiable = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            field, precision = self._differentiable(tilt, differentiable)
            variance = self.moments(Tilt(field, precision)).variance
            # A constant variance is not connected to the field, which requires materialize_grads.
            (third,) = torch.autograd.grad(variance.sum(), field, create_graph=differentiable, materialize_grads=True)
        return third

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:  # (..., n) -> (..., n) each
        """Compute the derivatives ∂κ₃/∂a and ∂κ₃/∂c of the third cumulant with respect to the mean and the variance.

        The results are detached from the computational graph.
        """
        with torch.inference_mode(False), torch.enable_grad():
            field, precision = (z.detach().clone().requires_grad_() for z in self.unpack(tilt))
            third = self.third_cumulant(Tilt(field, precision)) + 0 * (field + precision)  # connected even if constant
            fourth, by_precision = torch.autograd.grad(third.sum(), (field, precision), materialize_grads=True)
        with torch.no_grad():
            mean, variance = (wide(z) for z in self.moments(tilt))
            # ∂κ₃/∂A is the mixed cumulant of x, x, x and −½x², where x² = y² + 2ax − a².
            return slopes(variance, third.detach(), fourth, -2 * (by_precision + mean * fourth), self.dtype)

    def _differentiable(self, tilt: Tilt, in_graph: bool) -> tuple[Tensor, Tensor]:
        """Return the field and the precision as variables of differentiation, detached unless gradients are needed."""
        field, precision = self.unpack(tilt)
        if not in_graph:
            field, precision = field.detach().clone(), precision.detach().clone()
        return field if field.requires_grad else field.clone().requires_grad_(), precision

    def normalizable(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Return a mask of the units whose tilted prior can be normalized.

        The tilt must be finite and, on an unbounded support, the tails of the tilted prior must decay. If the tails do
        not decay, ln Z, the absolute mean and the variance are inf.
        """
        finite = self.finite(tilt)
        return finite if self.is_bounded() else finite & torch.isfinite(self.log_partition(tilt))

    @property
    def prior_field(self) -> nn.Parameter | None:
        """Parameter U of a prior proportional to exp(Ux), of shape `state_shape`; None for other priors."""
        field = getattr(self, "field", None)
        return field if isinstance(field, nn.Parameter) else None

    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "Units":
        """Return units of the same type for the transformed states shift + scale·x.

        Raises:
            ValueError: If the transformed states are not valid states of this unit type.
        """
        raise ValueError(f"{type(self).__name__}: states of this unit type cannot be rescaled")

    # ----- evidence, for conditioned units

    @property
    def n_rows(self) -> int | None:
        """Number of rows of evidence on which the units are conditioned; None if all particles share the evidence."""
        return None

    def rows(self, index: Tensor) -> "Units":
        """Select rows of evidence by index; return the units unchanged if all particles share the evidence."""
        return self

    def with_clamped(self, x: Tensor) -> Tensor:
        """Return the states x with all clamped units set to their clamped values."""
        return x
