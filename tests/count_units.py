"""Units as a user would write them: counts 0, 1, 2, …, of which there are infinitely many."""

import torch

from tapmachine import Units

TERMS = 220  # of the sums over counts: those beyond are negligible for the rates of the tests, up to 90


class Undeclared(Units):
    """P(k) ∝ exp(Uk − ½Vk²)/k!, the five methods only; with V = 0, Poisson units of rate exp(U)."""

    def __init__(self, n, log_rate=0.0, precision=0.0):
        super().__init__(n)
        self.log_rate = torch.nn.Parameter(torch.as_tensor(log_rate, dtype=torch.float64).expand(n).clone())
        self.precision = precision

    def _log_weights(self, field, precision):
        """Of the counts, in a last dimension; not normalised."""
        k = torch.arange(TERMS, dtype=self.dtype, device=self.device)
        exponent = (self.log_rate + field).unsqueeze(-1) * k - 0.5 * (self.precision + precision).unsqueeze(-1) * k**2
        return exponent - torch.lgamma(k + 1)

    def check_states(self, x, validate=True):
        x = self.as_states(x)
        if validate:
            self.reject((x < 0) | (x != x.round()), x, "x", "it must be a whole number, 0 or more")
        return x

    def log_prior(self, x, validate=True):
        x = self.check_states(x, validate)
        zero = torch.zeros_like(self.log_rate)
        exponent = self.log_rate * x - 0.5 * self.precision * x**2 - torch.lgamma(x + 1)
        return exponent - self._log_weights(zero, zero).logsumexp(-1)

    def normalisable(self, tilt):
        field, precision = self.unpack(tilt)
        return torch.isfinite(field) & torch.isfinite(precision) & (self.precision + precision >= 0)  # k! is not enough

    def log_partition(self, tilt):
        field, precision = self.unpack(tilt)
        zero = torch.zeros_like(self.log_rate)
        value = self._log_weights(field, precision).logsumexp(-1) - self._log_weights(zero, zero).logsumexp(-1)
        return torch.where(self.normalisable(tilt), value, torch.inf)

    def sample(self, tilt, generator=None):
        below = self._log_weights(*self.unpack(tilt)).softmax(-1).cumsum(-1)
        uniform = torch.rand(below.shape[:-1], generator=generator, dtype=self.dtype, device=self.device)
        return (uniform.unsqueeze(-1) > below[..., :-1]).sum(-1).to(self.dtype)

    def fit_to(self, x, weights=None, smoothing=1.0):
        x, weights = self.checked_rows(x, weights, smoothing)
        mean = ((weights.unsqueeze(-1) * x).sum(0) + smoothing) / (weights.sum() + smoothing)
        with torch.no_grad():
            self.log_rate += self.field_with_mean(mean)
        return self


class Counts(Undeclared):
    """The same, which say what they are."""

    def bounds(self):
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return zero, torch.full_like(zero, torch.inf)

    def is_countable(self):
        return True

    def decode(self, digits):
        return digits.to(self.dtype)
