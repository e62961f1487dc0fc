"""Result type of all estimators: log-likelihoods of rows, with ln Z and its error."""

from dataclasses import dataclass

import torch
from torch import Tensor

DRIFT = 1.0  # nats by which estimates of a log-likelihood may differ without a warning
DRIFT_SHARE = 0.02  # limit as a fraction of the log-likelihood, used if it is larger; three standard errors are added


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihoods ln P(x) of rows of data, in nats and in float64.

    For units with finitely many states, ln P(x) is the logarithm of a probability. For real-valued units, it is the
    logarithm of a density, which depends on the scale of the data and may be positive. For `TruncatedGaussBernoulli`
    units, it is the logarithm of a probability at 0 and of a density elsewhere. The mean over the rows is
    `float(likelihood)`.

    Attributes:
        values: Log-likelihood of each row, shape (N,); NaN for rows that could not be scored.
        log_partition: Value of ln Z, a scalar; NaN for a pseudo-likelihood. ln Z is relative to normalized priors and
            is 0 without couplings.
        common_error: Standard error of ln Z, a scalar common to all rows; 0 if ln Z is exact, and NaN if the error is
            unknown or ln Z is not used.
        n_units: Number of units of the machine in all layers.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, exact_log_likelihood, rbm
        >>> likelihood = exact_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4))
        >>> likelihood.values.shape, round(float(likelihood), 2)
        (torch.Size([4]), -2.77)
    """

    values: Tensor
    log_partition: Tensor
    common_error: Tensor
    n_units: int

    @property
    def mean(self) -> Tensor:  # ()
        """Mean over the rows that could be scored."""
        return self.values[self.scored].mean()

    @property
    def standard_error(self) -> Tensor:  # ()
        """Standard error of the mean over the rows, without `common_error`."""
        values = self.values[self.scored]
        return values.std() / len(values) ** 0.5 if len(values) > 1 else values.new_tensor(torch.nan)

    @property
    def per_unit(self) -> Tensor:  # ()
        """Mean divided by the number of visible and hidden units, as in the paper's figures."""
        return self.mean / self.n_units

    @property
    def scored(self) -> Tensor:  # (N,), bool
        """Mask of the rows that could be scored, shape (N,)."""
        return ~torch.isnan(self.values)

    def minus(self, log_scale: Tensor) -> "LogLikelihood":  # (N,)
        """Return the log-likelihoods in other units, given the logarithms of the Jacobians of the rows."""
        return LogLikelihood(self.values - log_scale, self.log_partition, self.common_error, self.n_units)

    def __float__(self) -> float:
        return float(self.mean)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else repr(self)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._summary()})"

    def _summary(self) -> str:
        unscored = int((~self.scored).sum())
        rows = f"{len(self)} row{'s' if len(self) > 1 else ''}" + (f", {unscored} not scored" if unscored else "")
        over_rows = f" ± {self.standard_error:.4f}" if len(self) > 1 else ""
        of_log_partition = f", ± {self.common_error:.4f} of ln Z" if bool(self.common_error > 0) else ""
        return f"{self.mean:.4f}{over_rows} nats over {rows}{of_log_partition}"


def has_drifted(gap: float, log_likelihood: float, error: float) -> bool:
    """Return whether two estimates of a log-likelihood differ significantly.

    Args:
        gap: Difference between the estimates in nats.
        log_likelihood: Approximate log-likelihood in nats.
        error: Standard error of the difference in nats.
    """
    return abs(gap) > max(DRIFT, DRIFT_SHARE * abs(log_likelihood)) + 3 * error


def disagreement(
    estimator: str, value: float, method: str, best: float, error: float, advice: str | None = None
) -> str | None:
    """Describe a significant difference between a log-likelihood and a more reliable one, or return None.

    Args:
        estimator: Name of the estimator, such as TAP.
        value: Its log-likelihood in nats.
        method: Method of the more reliable log-likelihood, such as `exact` or `annealed`.
        best: The more reliable log-likelihood in nats.
        error: Standard error of the difference.
        advice: What it means, or what to do about it (default: which results are affected).
    """
    gap = value - best
    if not has_drifted(gap, best, error):
        return None
    advice = advice or (
        f"{estimator} is not accurate for this machine, which affects solutions, denoising and imputation, but not the "
        f"{method} log-likelihood or samples"
    )
    return (
        f"{estimator}'s log-likelihood is {value:.4g} nats, {abs(gap):.1f} too {'high' if gap > 0 else 'low'} compared "
        f"with the {method} value of {best:.4g}{f' ± {error:.2g}' if error else ''}: {advice}"
    )
