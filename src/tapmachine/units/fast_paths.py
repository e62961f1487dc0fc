"""Optional methods that a unit type may override for speed.

Every method here has a default based on the five methods in `units/base.py`. A unit type overrides one if it has a
cheaper or more accurate form; each existing override was measured. A new unit type needs none of them.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.numerics.roots import bracketed_root
from tapmachine.units.states import Supported

FIELD_DOUBLINGS = 24  # starting from 1/standard deviation: larger fields are never needed
FIELD_HALVINGS = 36


class FastPaths(Supported):
    """Defaults of the methods that a unit type may override for speed."""

    if TYPE_CHECKING:  # implemented by unit types, see `Units`

        def log_prior(self, x: Tensor, validate: bool = True) -> Tensor: ...
        def log_partition(self, tilt: Tilt) -> Tensor: ...
        def moments(self, tilt: Tilt) -> Moments: ...

    fits_in_parts = False  # whether `fit_to` also takes rows that are not in memory, and reads them in parts

    # ----- under a field alone, for chains and clamped machines

    def mean_in(self, field: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Mean under a field alone, to the accuracy of its dtype."""
        return self.moments(Tilt(field, 0.0)).mean

    def log_prior_of_rows(self, x: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln P(x; θ) summed over the units of each row; values are not validated."""
        return self.log_prior(x, validate=False).sum(-1)

    def log_partition_of_rows(self, field: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln Z(B,0) summed over the units of each row."""
        nothing = torch.zeros_like(field)
        # A relative entropy without its term Ba, for which unit types have a cheap form.
        return -self.divergence(Tilt(field, 0.0), Moments(nothing, nothing)).sum(-1)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:  # (..., n) -> (...), float64
        """Σ ln Z(after, 0) − Σ ln Z(before, 0) over the units, for two fields without precisions."""
        gain = self.log_partition(Tilt(after, 0.0)) - self.log_partition(Tilt(before, 0.0))
        return gain.sum(-1).double()

    # ----- draws by inversion

    @property
    def has_inversion(self) -> bool:
        """Whether units can be drawn by inversion of uniform numbers."""
        return type(self).draw is not FastPaths.draw

    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor | None:  # (..., n) -> (..., *state_shape)
        """Draw from the tilted priors by inversion of one uniform number per unit; None if not supported.

        Chains use it with numbers that are evenly spread over the chains (`units/numerics/strata.py`). May overwrite
        the uniform numbers.
        """
        return None

    # ----- under a tilt

    def log_partition_and_moments(self, tilt: Tilt) -> tuple[Tensor, Moments]:
        """`log_partition` and `moments` together."""
        return self.log_partition(tilt), self.moments(tilt)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:  # (..., n) -> (..., n)
        """Relative entropy of the tilted prior, Ba − ½A(a² + c) − ln Z(B,A), at its moments; 0 without a tilt."""
        mean, variance = moments
        exponent = tilt.field * mean - 0.5 * tilt.precision * (mean**2 + variance)
        return self.per_unit(exponent) - self.log_partition(tilt)

    # ----- inside a machine: the neighbors' field has mean θ and variance κ, which reacts on the unit itself

    def weight_products(self, weights: Tensor) -> Tensor:  # (..., size) -> (..., size of κ)
        """W², whose sum ΣW²c' is the reaction κ; for units with q states, all products of two weights of a unit."""
        return weights**2

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        """Trailing shape of κ: (n,), or (n, q, q) for units with q states."""
        return self.state_shape

    def reaction_precision(self, reaction: Tensor) -> Tensor:  # (..., *reaction_shape) -> (..., *state_shape)
        """A = −κ, the precision of the tilt that the neighbors send."""
        return -reaction

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:  # (..., *state_shape)
        """½κc, the second-order term of −F; summed over a layer, ½ΣW²cc'."""
        return 0.5 * reaction * moments.variance

    def tilt_in(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        """Tilt that the neighbors send: B = θ − κ·mean and A = −κ. For the arguments see `respond`.

        `evidence` is an additional tilt on the units, which is not included in the result.
        """
        return Tilt(field - reaction * mean, self.reaction_precision(reaction))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        """Moments under the tilt B = θ − κ·mean, A = precision − κ: one explicit update [alg:rbmInf].

        Args:
            field: θ = ΣWa', of shape (..., *state_shape).
            reaction: κ = ΣW²c', the variance of that field; for units with q states its covariance, (..., n, q, q).
            mean: Current mean of the units.
            precision: Precision of evidence on the units, without that of the neighbors.
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
        """Solve mean = f_a(θ − κ·mean, precision − κ); returns the moments and their field B = θ − κ·mean.

        This is the unique minimum of the TAP free energy over these units with the others fixed.

        Args:
            field, reaction, precision: As in `respond`.
            start: Initial guess of B, usually the previous value.
            steps: Number of Newton steps. Default: until the root is accurate, which reads values back from the device.
        """

        def moments(b: Tensor) -> Moments:
            return self.moments(Tilt(b, precision - reaction))

        return bracketed_root(moments, field, reaction, start, self.bounds(), steps)

    @torch.no_grad()
    def field_with_mean(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Field B with f_a(B, 0) = mean, for means inside the support; 0 for units that do not react to fields.

        Uses bisection, since f_a is monotone: accurate to about nine digits, and limited where the field would be
        infinite.
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
