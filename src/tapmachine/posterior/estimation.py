"""A channel's parameter, from observations alone: the one under which they are most likely."""

import warnings
from dataclasses import replace
from math import exp, isfinite, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.channels import Channel
from tapmachine.inference import Scheme
from tapmachine.likelihood.score import EstimateError, in_double, spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.denoise import check_channel, denoise
from tapmachine.posterior.mixture import PosteriorWarning
from tapmachine.posterior.observations import as_observations

N_ROWS = 200  # observations that it is estimated from
GRID = 12  # values that are looked at before the best is refined
PRECISION = 1e-3  # of the logarithm of the parameter


@torch.no_grad()
def estimate_channel(
    machine: BoltzmannMachine, y: Tensor | np.ndarray[Any, Any], channel: Channel, scheme: Scheme | None = None
) -> Channel:
    """The channel with the parameter under which the observations are most likely, by the TAP evidence.

    Args:
        machine: the prior.
        y: observations, (K, n_visible), of which up to 200 are used.
        channel: `BinarySymmetric()` or `GaussianNoise()`; one whose parameter is given is returned as it is.
        scheme: `TAP()` unless given.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric, estimate_channel, rbm
        >>> machine = rbm(Binary(50, field=-5.0), Binary(2))
        >>> y = (torch.arange(1000).view(20, 50) % 4 == 0).float()
        >>> round(estimate_channel(machine, y, BinarySymmetric()).p, 2)
        0.25
    """
    from scipy.optimize import minimize_scalar

    y = as_observations(machine, y)
    check_channel(channel)
    unknown = channel.unknown(y, machine.units()[0])
    if unknown is None:
        return channel
    double = in_double(machine)  # differences of F are small beside F
    y = spaced(y, N_ROWS).to(double.dtype if y.is_floating_point() else None)
    name = unknown.name
    ends = log(unknown.smallest), log(unknown.largest)

    def cost(log_value: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosteriorWarning)
            own = replace(channel, **{name: exp(log_value)})  # type: ignore[type-var]
            posterior = denoise(double, y, own, scheme=scheme)
        return float(posterior.free_energy.mean())  # infinite, if that of a row is

    grid = [ends[0] + (ends[1] - ends[0]) * step / (GRID - 1) for step in range(GRID)]
    costs = [cost(value) for value in grid]
    best = min(range(GRID), key=costs.__getitem__)
    if not isfinite(costs[best]):
        raise EstimateError(f"{name} cannot be estimated: rows of y have no solution, whatever it is; give it")
    around = grid[max(0, best - 1)], grid[min(GRID - 1, best + 1)]
    found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": PRECISION})
    value = exp(found.x if found.fun <= costs[best] else grid[best])
    if not unknown.smallest * 1.01 < value < unknown.largest * 0.99:
        warnings.warn(
            f"{name} = {value:.3g} is at an end of the search, {unknown.smallest:.3g} to {unknown.largest:.3g}; the "
            "machine may be a bad prior for these observations",
            PosteriorWarning,
            stacklevel=3,
        )
    return replace(channel, **{name: value})  # type: ignore[type-var]
