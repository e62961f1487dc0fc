"""Interface of a unit type: a prior under a tilt, in five methods.

Inherited: everything about its states follows from `support` (`units/states.py`), and faster alternatives to these five
methods are optional (`units/fast_paths.py`).
"""

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.fast_paths import FastPaths


class Units(FastPaths, ABC):
    """A layer of `n` independent units, each with a normalized prior P(x; θ).

    Neighbors and evidence act on a unit by a tilt exp(Bx − ½Ax²), so a unit type is defined by one function,
    `log_partition(tilt)` = ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx with Z(0,0) = 1, and its derivatives.

    A new unit type implements the five methods below and declares its `support`, which is the real line by default:
    `support = Interval(0, 1)`, `FiniteSet((-1, 0, 1))`, `Lattice()` for counts, or `Simplex(q)`. By default, moments
    are computed by automatic differentiation of `log_partition`. If the prior is ∝ exp(Ux) with a parameter U, name it
    `field`, which lets training center the units. Tensors have the batch dimensions first and the units last: (..., n).
    Results have the parameters' dtype and device.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = self.as_count(n, "n", 1)

    # ----- methods to implement

    @abstractmethod
    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """Validate states and return them in the units' dtype; a ValueError names the first one off the support.

        `validate=False` checks shape and dtype only: reading the values would synchronize with a GPU.
        """

    @abstractmethod
    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """ln P(x; θ) of every unit; `validate` as in `check_states`."""

    @abstractmethod
    def log_partition(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx of every unit; +inf where it cannot be normalized."""

    @abstractmethod
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:  # (..., n) -> (..., n)
        """Independent exact draws from the tilted priors."""

    @abstractmethod
    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        """Fit the prior's parameters to the columns of x, in place, and return the units.

        Args:
            x: States, shape (rows, n).
            weights: A non-negative weight for each row.
            smoothing: Number of pseudo-observations, which keep the parameters of a constant column finite.
        """

    # ----- derived quantities

    def moments(self, tilt: Tilt) -> Moments:  # (..., n) -> (..., n)
        """Mean f_a = ∂ ln Z/∂B and variance f_c = ∂² ln Z/∂B² under the tilt [eq:fa], [eq:fc]."""
        if self.is_categorical:
            raise NotImplementedError(f"{type(self).__name__}: units with one-hot states must implement moments")
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

    def normalizable(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Where the tilted prior can be normalized: the tilt is finite and, on an unbounded support, the tails decay.

        Elsewhere ln Z, the absolute mean and the variance of units on unbounded supports are inf.
        """
        finite = self.finite(tilt)
        return finite if self.is_bounded() else finite & torch.isfinite(self.log_partition(tilt))

    @property
    def prior_field(self) -> nn.Parameter | None:
        """The parameter U of a prior ∝ exp(Ux), of shape `state_shape`; None for units without one."""
        field = getattr(self, "field", None)
        return field if isinstance(field, nn.Parameter) else None

    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "Units":
        """Units for shift + scale·x with the same probabilities; a ValueError if they would be of another type."""
        raise ValueError(f"{type(self).__name__}: the states of these units cannot be rescaled")

    # ----- evidence, for conditioned units

    @property
    def n_rows(self) -> int | None:
        """Number of rows of evidence that the units are conditioned on; None if all particles share the evidence."""
        return None

    def rows(self, index: Tensor) -> "Units":
        """Select rows of evidence; returns the units themselves if all particles share the evidence."""
        return self

    def hold(self, x: Tensor) -> Tensor:
        """Return the states with clamped units set to their values."""
        return x
