"""Metrics that compare estimates with true values."""

from math import inf, log10

import torch
from torch import Tensor

BITS = "expected equal shapes"


def _counts(truth: Tensor, estimate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count true and false positives and negatives; a value is positive if it is above the mean of the two states."""
    if truth.shape != estimate.shape:
        raise ValueError(f"truth has shape {tuple(truth.shape)}, estimate has shape {tuple(estimate.shape)}; {BITS}")
    estimate = estimate.to(truth.device)
    if bool(torch.isnan(truth).any() or torch.isnan(estimate).any()):
        raise ValueError("truth or estimate contains NaN; select the values to compare")
    middle = 0.0 if _are_spins(truth, estimate) else 0.5
    yes, estimated = truth > middle, estimate > middle
    pairs = ((yes, estimated), (~yes, estimated), (~yes, ~estimated), (yes, ~estimated))
    return tuple((a & b).sum().double() for a, b in pairs)  # type: ignore[return-value]


def _are_spins(truth: Tensor, estimate: Tensor) -> bool:
    """Return whether the two states are −1 and 1 (True) or 0 and 1 (False)."""
    return bool((truth < 0).any() or (estimate < 0).any())


def mcc(truth: Tensor, estimate: Tensor) -> float:
    """Compute the Matthews correlation coefficient of two-state values; 0 if the truth or the estimate is constant.

    Estimates between the two states are rounded to the nearest state.

    Example:
        >>> import torch
        >>> from tapmachine.analysis import mcc
        >>> mcc(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.9, 0.2, 0.4, 0.1]))
        0.577350...
    """
    tp, fp, tn, fn = _counts(truth, estimate)
    size = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)).sqrt()
    return float((tp * tn - fp * fn) / size) if size > 0 else 0.0


def accuracy(truth: Tensor, estimate: Tensor) -> float:
    """Compute the fraction of two-state values that are estimated correctly."""
    tp, fp, tn, fn = _counts(truth, estimate)
    return float((tp + tn) / (tp + fp + tn + fn))


def f1(truth: Tensor, estimate: Tensor) -> float:
    """Compute the F1 score of the upper state, the harmonic mean of precision and recall; 0 if the state is absent."""
    tp, fp, _, fn = _counts(truth, estimate)
    size = 2 * tp + fp + fn
    return float(2 * tp / size) if size > 0 else 0.0


def log_loss(truth: Tensor, estimate: Tensor, smallest: float = 1e-12) -> float:
    """Compute the mean log loss, in nats, of estimated means of two-state values."""
    _counts(truth, estimate)
    signed = _are_spins(truth, estimate)
    p = ((estimate + 1) / 2 if signed else estimate).double().clamp(smallest, 1 - smallest)
    yes = truth > (0.0 if signed else 0.5)
    return float(-torch.where(yes, p.log(), (-p).log1p()).mean())


def mse(truth: Tensor, estimate: Tensor) -> float:
    """Compute the mean squared error."""
    if truth.shape != estimate.shape:
        raise ValueError(f"truth has shape {tuple(truth.shape)}, estimate has shape {tuple(estimate.shape)}; {BITS}")
    estimate = estimate.to(truth.device)
    return float((truth.double() - estimate.double()).square().mean())


def psnr(truth: Tensor, estimate: Tensor, span: float = 1.0) -> float:
    """Compute the peak signal-to-noise ratio in decibels for values in an interval of length `span`.

    Example:
        >>> import torch
        >>> from tapmachine.analysis import psnr
        >>> psnr(torch.zeros(4), torch.full((4,), 0.1, dtype=torch.float64))
        20.0
    """
    error = mse(truth, estimate)
    return 10 * log10(span**2 / error) if error > 0 else inf
