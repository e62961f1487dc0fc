"""Units as a user would write them, by docs/how_to_extend.md: counts 0, 1, 2, …, of which there are infinitely many."""

import torch

from tapmachine import Tilt
from tapmachine.units import Lattice, Units


class Counts(Units):
    """Counts with P(k) = exp(Uk − e^U)/k!, the Poisson distribution with rate e^U."""

    support = Lattice()  # 0, 1, 2, …

    def __init__(self, n, field=0.0):
        super().__init__(n)
        self.field = torch.nn.Parameter(self.as_parameter(field, "field", (n,), self.common_dtype(field)))

    def log_prior(self, x, validate=True):
        return self.field * self.check_states(x, validate) - self.field.exp() - torch.lgamma(x + 1)

    def log_weights(self, tilt):  # ln P(k) + Bk − ½Ak² for k < 220, enough for rates up to 90: (..., n, 220)
        field, precision = self.unpack(tilt)
        k = torch.arange(220, dtype=self.dtype, device=self.device)
        exponent = (self.field + field).unsqueeze(-1) * k - 0.5 * precision.unsqueeze(-1) * k**2
        return exponent - torch.lgamma(k + 1) - self.field.exp().unsqueeze(-1)

    def log_partition(self, tilt):
        diverges = self.unpack(tilt)[1] < 0  # exp(½|A|k²) outgrows k!
        return torch.where(diverges, torch.inf, self.log_weights(tilt).logsumexp(-1))

    def sample(self, tilt, generator=None):
        below = self.log_weights(tilt).softmax(-1).cumsum(-1)
        uniform = torch.rand(below.shape[:-1], generator=generator, dtype=self.dtype, device=self.device)
        return (uniform.unsqueeze(-1) > below[..., :-1]).sum(-1).to(self.dtype)

    def fit_to(self, x, weights=None, smoothing=1.0):
        x, weights = self.checked_rows(x, weights, smoothing)
        with torch.no_grad():
            self.field.copy_(((weights @ x + smoothing) / (weights.sum() + smoothing)).log())
        return self


class Undeclared(Counts):
    """The same, without a declaration of their support."""

    support = Units.support

    def check_states(self, x, validate=True):
        self.reject_states(lambda k: (k < 0) | (k != k.round()), self.as_states(x), "expected a non-negative integer")
        return self.as_states(x)


class LightTailed(Counts):
    """P(k) ∝ exp(Uk − ½Vk²)/k!, V > 0, whose tails bear TAP's reaction term."""

    def __init__(self, n, field=0.0, precision=0.5):
        super().__init__(n, field)
        self.precision = precision

    def log_prior(self, x, validate=True):
        return super().log_prior(x, validate) - 0.5 * self.precision * x**2 - self._log_mass()

    def log_weights(self, tilt):
        field, precision = self.unpack(tilt)
        return super().log_weights(Tilt(field, precision + self.precision))

    def log_partition(self, tilt):
        diverges = self.unpack(tilt)[1] + self.precision < 0
        return torch.where(diverges, torch.inf, self.log_weights(tilt).logsumexp(-1) - self._log_mass())

    def _log_mass(self):
        return self.log_weights(Tilt(torch.zeros_like(self.field), 0.0)).logsumexp(-1)

    def fit_to(self, x, weights=None, smoothing=1.0):
        x, weights = self.checked_rows(x, weights, smoothing)
        mean = (weights @ x + smoothing) / (weights.sum() + smoothing)
        with torch.no_grad():
            self.field += self.field_with_mean(mean)
        return self
