"""Baseline estimators that do not use the couplings of a machine: pointwise estimates and nearest neighbors."""

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.posterior.channels import Channel
from tapmachine.units import Units

CHUNK = 2**26  # maximum number of distances in memory


@torch.no_grad()
def pointwise_estimate(units: Units, y: Tensor, channel: Channel) -> Moments:  # (K, *state_shape)
    """Compute the posterior mean and variance of each unit from only its prior and its observation (OPE) [eq:ope].

    For two states with prior mean m and flip probability p, the posterior mean is σ(ln(m/(1−m)) ± ln((1−p)/p)). It
    equals y for p = 0 and m for p = ½ (erratum E13). For Gaussian units with Gaussian noise, the estimate shrinks the
    observation toward the prior mean.

    Args:
        units: Units that define the priors, such as `Binary(n).fit_to(data)`.
        y: Observations, of shape (K, n), with NaN for missing values.
        channel: Channel of the observations.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric
        >>> from tapmachine.posterior.baselines import pointwise_estimate
        >>> units = Binary(2).fit_to(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
        >>> pointwise_estimate(units, torch.ones(1, 2), BinarySymmetric(0.2)).mean
        tensor([[0.8571, 0.7273]])
    """
    y = y.to(units.device, units.dtype if y.is_floating_point() else None)
    observed, _ = channel.observe_units(units, y)
    zero = torch.zeros((len(y), *units.state_shape), dtype=units.dtype, device=units.device)
    return observed.moments(Tilt(zero, 0.0))


@torch.no_grad()
def nearest_neighbors(data: Tensor, y: Tensor, k: int = 1) -> Tensor:  # (K, k), int64
    """Find the k rows of data that are nearest to each observation; return their indices, nearest first.

    The distance is the Euclidean distance over the observed values. The mean of the neighbors,
    `data[nearest_neighbors(data, y, 5)].mean(1)`, is an estimate of the states.

    Args:
        data: Examples, of shape (N, n).
        y: Observations, of shape (K, n), with NaN for missing values.
        k: Number of neighbors (default: 1).

    Example:
        >>> import torch
        >>> from tapmachine.posterior.baselines import nearest_neighbors
        >>> nearest_neighbors(torch.eye(3), torch.tensor([[0.1, 0.9, torch.nan]]))
        tensor([[1]])
    """
    dtype = torch.float64 if data.dtype == torch.float64 else torch.float32
    data, y = data.to(y.device, dtype), y.to(dtype)
    center = data.mean(0)  # without centering, large offsets would cause rounding errors in the distances
    data, y = data - center, y - center
    squares = data.square()
    neighbors = []
    for rows in y.split(max(1, CHUNK // len(data))):
        seen = ~torch.isnan(rows)
        if bool(seen.all()):
            distance = squares.sum(1) - 2 * rows @ data.T
        else:
            distance = seen.to(dtype) @ squares.T - 2 * rows.nan_to_num(0.0) @ data.T
        neighbors.append(distance.topk(k, largest=False).indices)
    return torch.cat(neighbors)
