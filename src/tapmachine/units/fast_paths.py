"""Optional methods that a unit type may override for speed.

The default implementations use the five abstract methods of `units/base.py`, so a new unit type does not have to
override any of them. Existing unit types override a method if benchmarks have shown that their version is faster or
more accurate.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.numerics.roots import bracketed_root
from tapmachine.units.states import Supported

FIELD_DOUBLINGS = 24  # starting from 1/standard deviation; larger fields are not needed
FIELD_HALVINGS = 36


class FastPaths(Supported):
    """Default implementations of the methods that a unit type may override for speed."""

    if TYPE_CHECKING:  # implemented by unit types, see `Units`

        def log_prior(self, x: Tensor, validate: bool = True) -> Tensor: ...
        def log_partition(self, tilt: Tilt) -> Tensor: ...
        def moments(self, tilt: Tilt) -> Moments: ...

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
        return type(self).draw is not FastPaths.draw

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

    def settle(
        self,
        field: Tensor,
        reaction: Tensor,
        start: Tensor,
        precision: Tensor | float = 0.0,
        steps: int | None = None,
    ) -> tuple[Moments, Tensor]:
        """Solve mean = f_a(θ − κ·mean, precision − κ) for the mean.

        The solution is the unique minimum of the TAP free energy over these units with all other units held fixed.

        Args:
            field, reaction, precision: See `respond`.
            start: Initial guess for the field B, usually its previous value.
            steps: Number of Newton steps. By default, steps are repeated until convergence, which requires reading
                values back from the device.

        Returns:
            The moments and the field B = θ − κ·mean.
        """

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
