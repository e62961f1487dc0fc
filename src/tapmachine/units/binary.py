"""Two-state units: Binary on {0, 1} and Spin on {−1, +1}."""

from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import sum_over_rows
from tapmachine.units.numerics.draws import draw_bits
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.roots import logistic_root
from tapmachine.units.numerics.third_cumulants import Slopes
from tapmachine.units.states import Values
from tapmachine.units.support import BITS, SPINS


class TwoStates(Units):
    """Base class for units with two states and a prior proportional to exp(Ux).

    U, B and A may be large and nearly cancel, so they are added in float64. For the same reason, ln Z is computed as
    the logarithm of a weighted sum of the two prior probabilities, not as a difference of two normalizers.
    """

    field: nn.Parameter

    def __init__(self, n: int, field: Values = 0.0) -> None:
        super().__init__(n)
        self.field = nn.Parameter(self.as_parameter(field, "field", (self.n,), self.common_dtype(field)))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        """Compute κ₃ = c·dc/da, since the variance c = (a − lower)(upper − a) is a function of the mean a."""
        mean, variance = self.moments(tilt)
        return variance * self._variance_slope(mean)

    @torch.no_grad()
    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        mean, variance = self.moments(tilt)
        return Slopes(self._variance_slope(mean) ** 2 - 2 * variance, torch.zeros_like(mean))

    def _variance_slope(self, mean: Tensor) -> Tensor:
        """Compute dc/da = lower + upper − 2a."""
        lower, upper = self.bounds()
        return lower + upper - 2 * mean

    def _set_field(self, field: Tensor) -> Self:
        self.check_fit("field", field)
        with torch.no_grad():
            self.field.copy_(field)
        return self


@final
class Binary(TwoStates):
    """Units with values in {0, 1} and the prior P(x) ∝ exp(Ux) [sec:apdx_binary].

    ln Z(B,A) = ln(1 + e^{U+B−A/2}) − ln(1 + e^U), f_a = σ(U + B − A/2), f_c = f_a(1 − f_a).

    Args:
        n: Number of units.
        field: Field U, a number or a tensor of shape (n,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Tilt
        >>> units = Binary(3, field=[-1.0, 0.0, 1.0])
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.zeros(3), precision=0.0)).mean
        tensor([0.2689, 0.5000, 0.7311])
    """

    support = BITS
    fits_in_parts = True

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return x * logsigmoid(self.field) + (1 - x) * logsigmoid(-self.field)

    def log_prior_of_rows(self, x: Tensor) -> Tensor:
        return self.check_states(x, validate=False) @ self.field - _softplus(self.field).sum()

    def log_partition_of_rows(self, field: Tensor) -> Tensor:
        return _softplus(self.field + field).sum(-1) - _softplus(self.field).sum()

    def log_partition(self, tilt: Tilt) -> Tensor:
        field, precision = self.unpack(tilt)
        gain = wide(field) - 0.5 * precision
        prior = wide(self.field)
        return torch.logaddexp(logsigmoid(-prior), logsigmoid(prior) + gain).to(self.dtype)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:
        return _softplus(after + self.field).sub_(_softplus(before + self.field)).sum(-1).double()

    def moments(self, tilt: Tilt) -> Moments:
        logit = self._logit(tilt)
        mean = torch.sigmoid(logit)
        # σ(−logit) instead of 1 − mean, which cancels near mean = 1. Rounding may make the result exceed ¼ by an ulp.
        return Moments(mean, (mean * torch.sigmoid(-logit)).clamp(max=0.25))

    def _logit(self, tilt: Tilt) -> Tensor:
        field, precision = self.unpack(tilt)
        return (wide(field) - 0.5 * precision + self.field).to(self.dtype)

    def mean_in(self, field: Tensor) -> Tensor:
        return torch.sigmoid(field + self.field)

    @torch.no_grad()
    def field_with_mean(self, mean: Tensor) -> Tensor:
        tiny = torch.finfo(mean.dtype).tiny
        return mean.clamp(min=tiny).log() - (1 - mean).clamp(min=tiny).log() - self.field

    def decode(self, digits: Tensor) -> Tensor:
        return digits.to(self.dtype)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        gain = tilt.field - 0.5 * tilt.precision
        return moments.mean * gain + (logsigmoid(-(self.field + gain)) - logsigmoid(-self.field))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        logit = torch.rsub(mean, 0.5).mul_(reaction).add_(field).add_(_without_precision(self.field, precision))
        return _two_state_moments(logit.sigmoid_())

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, precision = received
        total = torch.add(field, reaction, alpha=0.5) + _without_precision(self.field, precision)
        logit = logistic_root(total, reaction, start - field + total, steps)
        moments = _two_state_moments(torch.sigmoid(logit))
        return moments, torch.addcmul(field, reaction, moments.mean, value=-1)

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        field, _ = self.unpack(tilt)
        logit = field + _without_precision(self.field, tilt.precision)
        return draw_bits(logit.sigmoid_(), generator)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        field, _ = self.unpack(tilt)
        logit = field + _without_precision(self.field, tilt.precision)
        return torch.lt(uniform, logit.sigmoid_(), out=uniform)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        ones, rows = sum_over_rows(torch.mul, x, weights), wide(weights).sum()
        return self._set_field(torch.log((ones + smoothing) / (rows - ones + smoothing)))


@final
class Spin(TwoStates):
    """Units with values in {−1, +1} and the prior P(x) ∝ exp(Ux), as in Ising, Hopfield and SK models.

    ln Z(B,A) = ln cosh(U+B) − ln cosh U − A/2, f_a = tanh(U + B), f_c = 1 − f_a².

    Args:
        n: Number of units.
        field: Field U, a number or a tensor of shape (n,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Spin, Tilt
        >>> with torch.no_grad():
        ...     Spin(2).moments(Tilt(field=torch.tensor([0.0, 1.0]), precision=0.0)).mean
        tensor([0.0000, 0.7616])
    """

    support = SPINS
    fits_in_parts = True

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return logsigmoid(2 * x * self.field)

    def log_partition(self, tilt: Tilt) -> Tensor:
        field, precision = (wide(z) for z in self.unpack(tilt))
        prior = 2 * wide(self.field)
        up, down = field - 0.5 * precision, -field - 0.5 * precision
        return torch.logaddexp(logsigmoid(prior) + up, logsigmoid(-prior) + down).to(self.dtype)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:
        # ln cosh x = x + ln(1 + e^{−2x}) − ln 2
        gain = (after - before) + _softplus(-2 * (after + self.field)) - _softplus(-2 * (before + self.field))
        return gain.sum(-1).double()

    def moments(self, tilt: Tilt) -> Moments:
        total = self._total_field(tilt)
        variance = 4 * torch.sigmoid(2 * total) * torch.sigmoid(-2 * total)  # 1 − tanh² without cancellation
        return Moments(torch.tanh(total), variance.clamp(max=1.0))

    def _total_field(self, tilt: Tilt) -> Tensor:
        field, _ = self.unpack(tilt)  # the precision multiplies x² = 1 and drops out
        return field + self.field

    def mean_in(self, field: Tensor) -> Tensor:
        return torch.tanh(field + self.field)

    def decode(self, digits: Tensor) -> Tensor:
        return 2 * digits.to(self.dtype) - 1

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        # ln cosh x = x − ln σ(2x) − ln 2; the precision multiplies x² = 1 and drops out
        total = self.field + tilt.field
        return (moments.mean - 1) * tilt.field + (logsigmoid(2 * total) - logsigmoid(2 * self.field))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        mean = torch.tanh(torch.addcmul(field, reaction, mean, value=-1) + self.field)
        return Moments(mean, 1 - mean**2)

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, _ = received
        # b + κ tanh b = t is y + 4κσ(y) = 2t + 2κ for y = 2b
        total = 2 * (field + self.field + reaction)
        logit = logistic_root(total, 4 * reaction, 2 * (start + self.field), steps)
        mean = torch.tanh(0.5 * logit)
        return Moments(mean, 1 - mean**2), torch.addcmul(field, reaction, mean, value=-1)

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        up = draw_bits(self._total_field(tilt).mul_(2).sigmoid_(), generator)
        return up.mul_(2).sub_(1)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        up = torch.lt(uniform, self._total_field(tilt).mul_(2).sigmoid_(), out=uniform)
        return up.mul_(2).sub_(1)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        total, rows = sum_over_rows(torch.mul, x, weights), wide(weights).sum()
        return self._set_field(torch.atanh(total / (rows + 2 * smoothing)))


def _softplus(x: Tensor) -> Tensor:
    """Compute ln(1 + e^x) to full accuracy; with torch's default threshold, the error in float64 is about 1e-9."""
    return softplus(x, threshold=40.0)


def _two_state_moments(mean: Tensor) -> Moments:
    """Compute the variance of {0, 1} units from their mean.

    Near mean = 1, the variance has the same absolute error as the mean, which is sufficient within iterations.
    """
    return Moments(mean, torch.addcmul(mean, mean, mean, value=-1))


def _without_precision(field: Tensor, precision: Tensor | float) -> Tensor:
    """Return the field U − ½A, which for a {0, 1} unit is equivalent to the field U with the precision A."""
    return field if isinstance(precision, float) and precision == 0 else field - 0.5 * precision
