"""Exact recovery from linear measurements, for machines whose visible units are a mixture of Gaussians."""

import math
from copy import copy
from typing import Any

import torch

from tapmachine.exact import Mixture, mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.exact import conditioned
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.kinds import LinearMeasurements
from tapmachine.posterior.mixture import Posterior

SMALLEST_NOISE = 1e-6  # smallest standard deviation of the noise, relative to the size of a measurement


@torch.no_grad()
def exact_recovery(machine: BoltzmannMachine, y: Any, measurements: Measurements) -> Posterior | None:  # (K, M)
    """Compute the exact posterior given linear combinations of the visible units with Gaussian noise.

    The result is None unless the measurements are linear and the machine is a mixture of Gaussians. If the standard
    deviation of the noise is not known, it is estimated by maximum likelihood.
    """
    from scipy.optimize import minimize_scalar

    mixture = mixture_of(machine) if isinstance(measurements, LinearMeasurements) else None
    dense = None if mixture is None or mixture.blocks else measurements.operator.dense()
    if mixture is None or dense is None:
        return None
    values = (measurements.check_measurements(y).double() - measurements.bias.double()).to(mixture.log_weights)
    matrix = dense.to(values)
    x = torch.cat((values.new_full((len(values), mixture.n), torch.nan), values), 1)

    def given(noise: float) -> Mixture:
        return mixture.measured(matrix, torch.full_like(matrix[:, 0], noise**2))

    spread = float(values[~values.isnan()].square().mean().sqrt())
    smallest = max(SMALLEST_NOISE * spread, torch.finfo(torch.float32).tiny)
    noise, known = measurements.noise, copy(measurements)
    if noise is None:
        ends = math.log(smallest), math.log(max(spread, 2 * smallest))
        found = minimize_scalar(
            lambda log_noise: -float(given(math.exp(log_noise)).log_weight(x).mean()), bounds=ends, method="bounded"
        )
        noise = known.noise = math.exp(found.x)
    return conditioned(machine, given(max(noise, smallest)), x, known)
