"""Maximum-likelihood estimation of the parameter of a channel."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, isfinite, log

from tapmachine.data.errors import EstimateError, PosteriorWarning, warn
from tapmachine.posterior.channels import Channel, UnknownParameter

GRID = 12  # number of values in the initial grid search
PRECISION = 1e-3  # tolerance of the logarithm of the parameter


def most_likely(channel: Channel, unknown: UnknownParameter, free_energy: Callable[[Channel], float]) -> Channel:
    """Return the channel whose parameter minimizes F, found by a grid search followed by Brent's method.

    Args:
        channel: Channel whose parameter is None.
        unknown: Name of the parameter, and the interval to search.
        free_energy: Function that returns the mean F of the observations under a channel; inf if a row has no solution.
    """
    from scipy.optimize import minimize_scalar

    name = unknown.name
    ends = log(unknown.smallest), log(unknown.largest)

    def with_value(log_value: float) -> Channel:
        return replace(channel, **{name: exp(log_value)})  # type: ignore[type-var]

    def cost(log_value: float) -> float:
        return free_energy(with_value(log_value))

    grid = [ends[0] + (ends[1] - ends[0]) * step / (GRID - 1) for step in range(GRID)]
    costs = [cost(log_value) for log_value in grid]
    best = min(range(GRID), key=costs.__getitem__)
    if not isfinite(costs[best]):
        raise EstimateError(
            f"{name} cannot be estimated, because some rows of y have no solution for any value; set {name}"
        )
    around = grid[max(0, best - 1)], grid[min(GRID - 1, best + 1)]
    refined = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": PRECISION})
    log_value = refined.x if refined.fun <= costs[best] else grid[best]
    value = exp(log_value)
    if not unknown.smallest * 1.01 < value < unknown.largest * 0.99:
        warn(
            f"{name} = {value:.3g} is at a bound of the search interval, {unknown.smallest:.3g} to "
            f"{unknown.largest:.3g}; the machine may be a poor prior for these observations",
            PosteriorWarning,
        )
    return with_value(log_value)
