"""Poisson units for counts 0, 1, 2, …."""

from typing import Self, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import sum_over_rows
from tapmachine.units.numerics.counts import count_weights, draw_counts, draw_poisson
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.third_cumulants import Slopes
from tapmachine.units.states import Values
from tapmachine.units.support import Lattice

HALVINGS = 50  # number of bisection steps for the field of a unit with evidence


@final
class Poisson(Units):
    """Units for counts 0, 1, 2, … with the Poisson prior P(x) = exp(Ux − e^U)/x! of rate e^U.

    In a machine, the rate of a unit is e^{U + Wh}. A tilt with precision A = 0 multiplies the rate by e^B. If A > 0,
    the sum over the counts is computed numerically around the mode. If A < 0, the tilted prior cannot be normalized,
    and ln Z is +inf.

    The TAP reaction would make the precision negative. For Poisson units, F is therefore expanded at a fixed mean a, at
    which the variance is c(a) = a. The result is a tilt with B = ΣWa' + ½ΣW²c' and A = 0, which is correct to the same
    order in the couplings.

    Args:
        n: Number of units.
        field: Field U (the logarithm of the rate), a number or a tensor of shape (n,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Poisson, Tilt
        >>> units = Poisson(2, field=torch.tensor([0.0, 1.0]))
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.ones(2), precision=0.0)).mean
        tensor([2.7183, 7.3891])
        >>> units.log_prior(torch.tensor([0.0, 3.0])).exp()
        tensor([0.3679, 0.2209], grad_fn=<ExpBackward0>)
    """

    support = Lattice()
    fits_in_parts = True
    field: nn.Parameter

    def __init__(self, n: int, field: Values = 0.0) -> None:
        super().__init__(n)
        self.field = nn.Parameter(self.as_parameter(field, "field", (self.n,), self.common_dtype(field)))

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x, field = wide(self.check_states(x, validate)), wide(self.field)
        return (field * x - field.exp() - torch.lgamma(x + 1)).to(self.dtype)

    def _split(self, tilt: Tilt) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return U, B and A in float64; A is None if it is 0 for all units."""
        is_zero = isinstance(tilt.precision, int | float) and tilt.precision == 0
        field, precision = self.unpack(tilt)
        can_look = precision.device.type == "cpu" and not torch.compiler.is_compiling()  # a GPU would synchronize
        if not is_zero and can_look and not precision.requires_grad:
            is_zero = not bool((precision != 0).any())
        return wide(self.field), wide(field), None if is_zero else wide(precision)

    def log_partition(self, tilt: Tilt) -> Tensor:
        """Compute ln Σ P(x) exp(Bx − ½Ax²), which is e^{U+B} − e^U for A = 0."""
        U, B, A = self._split(tilt)
        if A is None:
            return (U.exp() * torch.expm1(B)).to(self.dtype)
        log_weights = count_weights(U + B, A.clamp(min=0))[1]
        value = log_weights.logsumexp(-1) - U.exp()
        return torch.where(A < 0, torch.inf, value).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        U, B, A = self._split(tilt)
        if A is None:
            rate = (U + B).exp().to(self.dtype)
            return Moments(rate, rate)
        mean, variance, _ = _cumulants(U + B, A.clamp(min=0))
        return Moments(*(torch.where(A < 0, torch.inf, z).to(self.dtype) for z in (mean, variance)))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        U, B, A = self._split(tilt)
        if A is None:
            return (U + B).exp().to(self.dtype)
        third = _cumulants(torch.where(A < 0, 0.0, U + B), A.clamp(min=0))[2]
        return torch.where(A < 0, 0.0, third).to(self.dtype)

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        """Compute dκ₃/da = κ₄/c, since the neighbors affect only the mean; without evidence, the derivative is 1."""
        with torch.inference_mode(False), torch.enable_grad():
            field, precision = (z.detach().clone() for z in self.unpack(tilt))
            third = self.third_cumulant(Tilt(field.requires_grad_(), precision))
            (fourth,) = torch.autograd.grad(third.sum(), field)
        variance = self.moments(Tilt(field.detach(), precision)).variance.detach()
        by_mean = fourth / variance.clamp(min=torch.finfo(self.dtype).tiny)
        return Slopes(by_mean, torch.zeros_like(by_mean))

    def mean_in(self, field: Tensor) -> Tensor:
        return (self.field + field).exp()

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:
        U, before, after = wide(self.field), wide(before), wide(after)
        return ((U + before).exp() * torch.expm1(after - before)).sum(-1)

    @torch.no_grad()
    def field_with_mean(self, mean: Tensor) -> Tensor:
        return mean.clamp(min=torch.finfo(mean.dtype).tiny).log() - self.field

    # ----- draws

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        U, B, A = self._split(tilt)
        if A is None:
            return torch.poisson((U + B).exp(), generator=generator).to(self.dtype)
        return self.draw(tilt, torch.rand(B.shape, generator=generator, dtype=B.dtype, device=B.device))

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        """Return the smallest count whose cumulative probability exceeds the uniform number."""
        U, B, A = self._split(tilt)
        uniform = wide(uniform)
        if A is None:
            return draw_poisson((U + B).exp(), uniform).to(self.dtype)
        return draw_counts(U + B, A, uniform).to(self.dtype)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        """Set the rates to the column means, after adding `smoothing`/2 pseudo-observations with the value 1."""
        x, weights = self.checked_rows(x, weights, smoothing)
        total = sum_over_rows(torch.mul, x, weights) + 0.5 * smoothing
        field = (total / (wide(weights).sum() + 0.5 * smoothing)).log()
        self.check_fit("field", field)
        with torch.no_grad():
            self.field.copy_(field)
        return self

    # ----- inside a machine: reaction through the mean alone

    def reaction_precision(self, reaction: Tensor) -> Tensor:
        return torch.zeros_like(reaction)

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        given_field, precision = (0.0, 0.0) if evidence is None else evidence
        total = self._field_in(field + given_field, reaction, precision)
        return Tilt(total - given_field, torch.zeros_like(reaction))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        return self.moments(Tilt(self._field_in(field, reaction, precision), precision))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, precision = received
        total = self._field_in(field, reaction, precision)
        return self.moments(Tilt(total, precision)), total

    def _field_in(self, field: Tensor, reaction: Tensor, precision: Tensor | float) -> Tensor:
        """Compute the field B = θ + ½κ dc/da, where dc/da is 1 without evidence.

        With evidence, dc/da depends on B, and the equation is solved by bisection.
        """
        largest = field + 0.5 * reaction
        U, B, A = self._split(Tilt(largest, precision))
        if A is None:
            return largest
        theta, half, A = wide(field), 0.5 * wide(reaction), A.clamp(min=0)
        with torch.no_grad():
            low, high = theta - half, theta + half  # |dc/da| is at most 1
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                _, variance, third = _cumulants(U + middle, A)
                short = middle < theta + half * (third / variance.clamp(min=1e-300)).clamp(-1, 1)
                low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        return torch.where(A == 0, B, 0.5 * (low + high)).to(self.dtype)


def _cumulants(field: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean, variance and third cumulant of counts with weights exp(Bx − ½Ax²)/x!."""
    k, log_weights = count_weights(field, precision)
    probability = log_weights.softmax(-1)
    center = k[..., k.shape[-1] // 2]  # differences from the mode do not cancel
    offset = (probability * (k - center.unsqueeze(-1))).sum(-1)
    deviation = k - (center + offset).unsqueeze(-1)
    return center + offset, (probability * deviation**2).sum(-1), (probability * deviation**3).sum(-1)
