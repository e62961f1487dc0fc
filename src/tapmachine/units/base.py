"""Base class for all unit types, with four abstract methods.

The properties of the states follow from `support` (`units/states.py`). All other methods have default implementations
in terms of the four. Existing unit types override a method if benchmarks have shown that their version is faster or
more accurate.
"""

from abc import ABC, abstractmethod
from math import prod
from typing import Self

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.roots import bracketed_root
from tapmachine.units.numerics.third_cumulants import Slopes, slopes
from tapmachine.units.states import States

FIELD_DOUBLINGS = 24  # starting from 1/standard deviation; larger fields are not needed
FIELD_HALVINGS = 36


class Units(States, ABC):
    """A layer of `n` independent units, each with a normalized prior P(x; θ).

    Neighbors and evidence act on a unit through a tilt exp(Bx − ½Ax²). A unit type is therefore defined by one
    function, ln Z(B,A) = ln ∫ P(x; θ) exp(Bx − ½Ax²) dx with Z(0,0) = 1, which `log_partition` computes. The mean and
    the variance of a unit are derivatives of ln Z.

    A new unit type implements the four abstract methods and declares its `support`, which is the real line by default.
    Examples are `support = Interval(0, 1)`, `FiniteSet((-1, 0, 1))`, `Lattice()` for counts, and `Simplex(q)`. By
    default, moments are computed by automatic differentiation of `log_partition`. If the prior is proportional to
    exp(Ux) with a parameter U, name this parameter `field`, which allows training to center the units. Tensors have the
    batch dimensions first and the units last: (..., n). Results have the dtype and device of the parameters.

    Args:
        n: Number of units.

    Example:
        >>> from tapmachine import Categorical, Spin, Units
        >>> isinstance(Spin(3), Units), Spin(3).state_shape, Categorical(3, 4).state_shape
        (True, (3,), (3, 4))
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = self.as_count(n, "n", 1)

    # ----- methods to implement

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

    @property
    def parts(self) -> list["Units"]:
        """Blocks of units of one type: the blocks of a `Mixed` layer, or the units themselves."""
        return [self]

    @property
    def sizes(self) -> list[int]:
        """Number of components of each of the `parts`: n, or n·q for units with q states."""
        return [prod(part.state_shape) for part in self.parts]

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

    def any_state(self) -> Tensor:  # state_shape
        """Return a valid state of each unit, such as a placeholder for missing values; always the same."""
        no_tilt = Tilt(torch.zeros(self.state_shape, dtype=self.dtype, device=self.device), 0.0)
        return self.sample(no_tilt, torch.Generator(self.device).manual_seed(0))

    @torch.no_grad()
    def random_means(self, count: int, generator: torch.Generator) -> Tensor:  # (count, *state_shape)
        """Draw random points inside the support; where it is unbounded, draw from the prior."""
        shape = (count, *self.state_shape)
        if self.is_categorical:
            arrivals = torch.empty(shape, dtype=self.dtype, device=self.device).exponential_(generator=generator)
            return self.normalized(arrivals)
        lower, upper = self.bounds()
        uniform = torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)
        mean = lower + (upper - lower) * uniform
        if bool(torch.isfinite(upper - lower).all()):
            return mean
        draws = self.sample(Tilt(torch.zeros_like(uniform), 0.0), generator)
        return torch.where(torch.isfinite(mean), mean, draws)

    fits_in_parts = False  # whether `fit_to` also accepts rows that are not in memory, which it reads in parts

    # ----- under a field alone, for chains and clamped machines

    def mean_in(self, field: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Compute the mean under a tilt with precision 0; the result has the accuracy of the field's dtype."""
        return self.moments(Tilt(field, 0.0)).mean

    def log_prior_of_rows(self, x: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """Compute ln P(x; θ) of each row, summed over the units, without validating x."""
        return self.log_prior(x, validate=False).sum(-1)

    def log_partition_of_rows(self, field: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """Compute ln Z(B,0) of each row, summed over the units."""
        nothing = torch.zeros_like(field)
        # The relative entropy without its term Ba; unit types have fast implementations of `divergence`.
        return -self.divergence(Tilt(field, 0.0), Moments(nothing, nothing)).sum(-1)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:  # (..., n) -> (...), float64
        """Compute the change in ln Z between two fields, Σ ln Z(after, 0) − Σ ln Z(before, 0), over all units."""
        gain = self.log_partition(Tilt(after, 0.0)) - self.log_partition(Tilt(before, 0.0))
        return gain.sum(-1).double()

    # ----- draws by inversion

    @property
    def has_inversion(self) -> bool:
        """Whether the units implement `draw`, which samples by inverting the CDF at uniform numbers."""
        return type(self).draw is not Units.draw

    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor | None:  # (..., n) -> (..., *state_shape)
        """Draw from the tilted priors by inverting the CDF at one uniform number per unit; None if not supported.

        Gibbs chains call this method with numbers that are evenly spread over the chains (`units/numerics/strata.py`).
        The uniform numbers may be overwritten.
        """
        return None

    # ----- under a tilt

    def log_partition_and_moments(self, tilt: Tilt) -> tuple[Tensor, Moments]:
        """Return the results of `log_partition` and `moments`."""
        return self.log_partition(tilt), self.moments(tilt)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:  # (..., n) -> (..., n)
        """Compute the relative entropy of the tilted prior to the prior, Ba − ½A(a² + c) − ln Z(B,A).

        Args:
            tilt: Tilt with field B and precision A.
            moments: Mean a and variance c under the tilt.
        """
        mean, variance = moments
        exponent = tilt.field * mean - 0.5 * tilt.precision * (mean**2 + variance)
        return self.per_unit(exponent) - self.log_partition(tilt)

    # ----- inside a machine: the neighbors' field has mean θ and variance κ, which causes the Onsager reaction

    def weight_products(self, weights: Tensor) -> Tensor:  # (..., size) -> (..., size of κ)
        """Return the squared weights W², whose weighted sum ΣW²c' is the reaction κ.

        For units with q states, the result contains all products of two weights of the same unit.
        """
        return weights**2

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        """Trailing shape of the reaction κ: (n,), or (n, q, q) for units with q states."""
        return self.state_shape

    def reaction_precision(self, reaction: Tensor) -> Tensor:  # (..., *reaction_shape) -> (..., *state_shape)
        """Return the precision A = −κ of the tilt from the neighbors."""
        return -reaction

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:  # (..., *state_shape)
        """Compute the second-order term ½κc of −F for each unit; its sum over a layer is ½ΣW²cc'."""
        return 0.5 * reaction * moments.variance

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        """Compute the tilt from the neighbors, with field B = θ − κ·mean and precision A = −κ.

        Args:
            field, reaction, mean: See `respond`.
            evidence: Additional tilt on the units; it is not included in the result.
        """
        return Tilt(field - reaction * mean, self.reaction_precision(reaction))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        """Compute the moments in an explicit update, under the tilt B = θ − κ·mean, A = precision − κ [alg:rbmInf].

        Args:
            field: Mean θ = ΣWa' of the neighbors' field, of shape (..., *state_shape).
            reaction: Variance κ = ΣW²c' of the neighbors' field, of shape (..., n). For units with q states, the
                covariance matrix of the field, of shape (..., n, q, q).
            mean: Current mean of the units, of shape (..., *state_shape).
            precision: Precision of the evidence on the units (default: 0).
        """
        return self.moments(Tilt(field - reaction * mean, precision - reaction))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        """Solve mean = f_a(θ − κ·mean, precision − κ) for the mean.

        The solution is the unique minimum of the TAP free energy over these units with all other units held fixed.

        Args:
            received: Field from the neighbors and precision of the evidence on the units; see `respond`.
            start: Initial guess for the field B, usually its previous value.
            steps: Number of Newton steps. By default, steps are repeated until convergence, which requires reading
                values back from the device.

        Returns:
            The moments and the field B = θ − κ·mean.
        """
        field, reaction, precision = received

        def moments(b: Tensor) -> Moments:
            return self.moments(Tilt(b, precision - reaction))

        return bracketed_root(moments, field, reaction, start, self.bounds(), steps)

    @torch.no_grad()
    def field_with_mean(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Compute the field B under which units have a specified mean, f_a(B, 0) = mean, by bisection.

        The result is accurate to about nine digits. It is 0 for units with zero variance, and a large finite number for
        means on the boundary of the support.
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
