"""Optional, for speed: what the rest of the package asks of units and a unit type may answer faster.

Every method here has a default that follows from the five methods in `units/base.py`. A unit type overrides one where
it knows a cheaper or more accurate form, which was measured for those that do. A new unit type needs none of them.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.numerics.roots import bracketed_root
from tapmachine.units.states import Supported

FIELD_DOUBLINGS = 24  # from one over the standard deviation: larger fields are never needed
FIELD_HALVINGS = 36


class FastPaths(Supported):
    """Defaults for everything that a unit type may override for speed."""

    if TYPE_CHECKING:  # what a unit type says, see `Units`

        def log_prior(self, x: Tensor, validate: bool = True) -> Tensor: ...
        def log_partition(self, tilt: Tilt) -> Tensor: ...
        def moments(self, tilt: Tilt) -> Moments: ...

    fits_in_parts = False  # whether `fit_to` takes rows that are not in memory, too, and goes through them in parts

    # ----- under a field alone, for chains and clamped machines

    def mean_in(self, field: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """The mean under a field alone, as accurate as its dtype."""
        return self.moments(Tilt(field, 0.0)).mean

    def log_prior_of_rows(self, x: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln P(x; θ) of all units of each row together; the values are not checked."""
        return self.log_prior(x, validate=False).sum(-1)

    def log_partition_of_rows(self, field: Tensor) -> Tensor:  # (M, *state_shape) -> (M,)
        """ln Z(B,0) of all units of each row together."""
        nothing = torch.zeros_like(field)
        # A relative entropy without its term Ba, which unit types have in a cheap form.
        return -self.divergence(Tilt(field, 0.0), Moments(nothing, nothing)).sum(-1)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:  # (..., n) -> (...), float64
        """Σ ln Z(after, 0) − Σ ln Z(before, 0) over the units, for two fields without a precision."""
        gain = self.log_partition(Tilt(after, 0.0)) - self.log_partition(Tilt(before, 0.0))
        return gain.sum(-1).double()

    # ----- draws by inversion

    @property
    def has_inversion(self) -> bool:
        """Whether units can be drawn by inversion of uniform numbers."""
        return type(self).draw is not FastPaths.draw

    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor | None:  # (..., n) -> (..., *state_shape)
        """States of the tilted priors by inversion of one uniform number per unit; None for types without it.

        Chains use it with numbers that are spread evenly over the chains (`units/numerics/strata.py`). The uniform
        numbers may be overwritten.
        """
        return None

    # ----- under a tilt

    def log_partition_and_moments(self, tilt: Tilt) -> tuple[Tensor, Moments]:
        """`log_partition` and `moments` together."""
        return self.log_partition(tilt), self.moments(tilt)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:  # (..., n) -> (..., n)
        """Relative entropy of the tilted prior, Ba − ½A(a² + c) − ln Z(B,A), given its moments; 0 without a tilt."""
        mean, variance = moments
        exponent = tilt.field * mean - 0.5 * tilt.precision * (mean**2 + variance)
        return self.per_unit(exponent) - self.log_partition(tilt)

    # ----- inside a machine: the neighbors' field has mean θ and variance κ, which reacts on the unit itself

    def weight_products(self, weights: Tensor) -> Tensor:  # (..., size) -> (..., size of κ)
        """W², of which ΣW²c' is the reaction κ; for units with q states all products of two weights of a unit."""
        return weights**2

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        """The trailing shape of κ: (n,), or (n, q, q) for units with q states."""
        return self.state_shape

    def reaction_precision(self, reaction: Tensor) -> Tensor:  # (..., *reaction_shape) -> (..., *state_shape)
        """A = −κ, the precision of the tilt that the neighbors send."""
        return -reaction

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:  # (..., *state_shape)
        """½κc, the second-order term of −F; summed over a layer, ½ΣW²cc'."""
        return 0.5 * reaction * moments.variance

    def tilt_in(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        """The tilt that the neighbors send, B = θ − κ·mean and A = −κ. For the arguments see `respond`.

        `evidence` is another tilt on the units, which is no part of the result.
        """
        return Tilt(field - reaction * mean, self.reaction_precision(reaction))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        """The moments under the tilt B = θ − κ·mean, A = precision − κ: one explicit update [alg:rbmInf].

        Args:
            field: θ = ΣWa', of shape (..., *state_shape).
            reaction: κ = ΣW²c', the variance of that field; for units with q states its covariance, (..., n, q, q).
            mean: The present mean of the units.
            precision: Precision of evidence on the units, apart from what the neighbors send.
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
            field, reaction, precision: As in `respond`.
            start: A guess of B, usually the last one.
            steps: Number of Newton steps. Default: until the root is accurate, which looks at the values.
        """

        def moments(b: Tensor) -> Moments:
            return self.moments(Tilt(b, precision - reaction))

        return bracketed_root(moments, field, reaction, start, self.bounds(), steps)

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
