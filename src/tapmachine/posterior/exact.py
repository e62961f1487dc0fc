"""Exact posteriors for machines whose visible units are a mixture, given missing values or Gaussian noise."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Status
from tapmachine.exact import Mixture, mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.channels import Channel, GaussianNoise, Missing
from tapmachine.posterior.mixture import Posterior, joined

if TYPE_CHECKING:
    from tapmachine.posterior.measurements.base import Measurements


@torch.no_grad()
def exact_posterior(machine: BoltzmannMachine, y: Tensor, channel: Channel) -> Posterior | None:  # (K, n)
    """Compute the exact posterior given observations, or return None if the mean field is required.

    The posterior is exact for mixtures with missing values, and for mixtures of Gaussians with Gaussian noise.
    """
    mixture = mixture_of(machine) if type(channel) in (GaussianNoise, Missing) else None
    if mixture is None or (mixture.blocks and type(channel) is not Missing):
        return None
    if type(channel) is Missing:
        x = channel.as_states(y)
        return conditioned(machine, mixture, x.to(mixture.log_weights), channel)
    evidence = channel.evidence(y.double(), machine.layers[0])
    # Up to a factor, a tilt exp(Dx − ½Ex²) is an observation D/E with variance 1/E. A known unit has variance 0.
    is_tilted = evidence.precision > 0
    values, variances = (
        torch.where(is_tilted, z / evidence.precision, torch.nan).to(mixture.log_weights) for z in (evidence.field, 1.0)
    )
    factor = 0.5 * torch.where(is_tilted, (2 * math.pi * variances).log() + evidence.field * values, 0.0).sum(1)
    known = torch.where(evidence.known, evidence.states, torch.nan).to(mixture.log_weights)
    # Rows that observe different columns with the same noise share all matrices.
    of_column = variances.nan_to_num(0.0).amax(0)
    patterns, pattern_of = torch.where(is_tilted, variances, of_column).unique(dim=0, return_inverse=True)
    parts, order = [], []
    for index, pattern in enumerate(patterns):
        rows, measured = (pattern_of == index).nonzero().flatten(), pattern > 0
        identity = torch.eye(mixture.n, dtype=values.dtype, device=values.device)
        noisy = mixture.measured(identity[measured], pattern[measured])
        parts.append(conditioned(machine, noisy, torch.cat((known[rows], values[rows][:, measured]), 1), channel))
        order.append(rows)
    posterior = joined(parts).select(torch.cat(order).argsort())
    return replace(posterior, free_energy=posterior.free_energy - factor - evidence.log_scale)


def conditioned(machine: BoltzmannMachine, mixture: Mixture, x: Tensor, channel: "Channel | Measurements") -> Posterior:
    """Condition a mixture, in which measured columns follow the visible units, and return the moments of all layers."""
    given, n = mixture.condition(x), machine.sizes[0]
    visible = Moments(*(z[:, :n].unflatten(1, machine.layers[0].state_shape) for z in given.moments))
    layers = tuple(Moments(*(z.to(machine.dtype) for z in layer)) for layer in (visible, given.hidden_moments))
    one = torch.ones(len(x), dtype=torch.long, device=x.device)
    return Posterior(layers, -given.log_weight, one, one * int(Status.CONVERGED), channel, machine.layers[0], "exact")
