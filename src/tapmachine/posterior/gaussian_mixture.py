"""Exact posteriors of machines whose visible units are a mixture of Gaussians, given Gaussian noise or gaps."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Status, Tilt
from tapmachine.likelihood.slabs import (
    GaussianMixture,
    active_sets,
    as_gaussian_mixture,
    coupled_slabs,
    is_gaussian_mixture,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.posterior.channels import Channel, GaussianNoise, Missing
from tapmachine.posterior.mixture import Part, Posterior, joined
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab

CHUNK_VALUES = 2**24  # means of the components held at a time
NEGLIGIBLE = 1e-14  # share of a component that is left out of the moments


def has_exact_posterior(machine: BoltzmannMachine, channel: Channel) -> bool:
    """Whether `exact_posterior` can be used: few `SpikeSlab` hidden units, or a machine of a real-valued table."""
    return type(channel) in (GaussianNoise, Missing) and is_gaussian_mixture(machine)


@torch.no_grad()
def exact_posterior(machine: BoltzmannMachine, y: Tensor, channel: Channel) -> Posterior:  # (K, n)
    """The posterior given observations, for a machine and a channel for which `has_exact_posterior` holds.

    Every component of the mixture is conditioned on the observed values; its weight is multiplied by their density.
    Rows with the same gaps and the same noise share the matrices that this takes.
    """
    double = in_double(machine)
    units, mixture = double.layers[0], as_gaussian_mixture(double)
    evidence = channel.evidence(y.to(double.dtype), units)
    # A tilt exp(Dx − ½Ex²) is an observation D/E with the variance 1/E, up to a factor; a known unit has variance 0.
    is_tilted: Tensor = evidence.precision > 0
    values = torch.where(is_tilted, evidence.field / evidence.precision, evidence.states)
    variances = torch.where(is_tilted, 1 / evidence.precision, torch.where(evidence.known, 0.0, torch.nan))
    factor = 0.5 * torch.where(is_tilted, (2 * math.pi * variances).log() + evidence.field * values, 0.0).sum(1)
    hidden = _Hidden.of(double)
    patterns, pattern_of = variances.nan_to_num(-1.0).unique(dim=0, return_inverse=True)
    order, parts = [], []
    for index, pattern in enumerate(patterns):
        components = _Observed.of(mixture, pattern)
        rows = (pattern_of == index).nonzero().flatten()
        for some in rows.split(max(1, CHUNK_VALUES // mixture.means.numel())):
            log_weights = components.log_weights(values[some])
            shares = log_weights.softmax(0)
            kept = (shares > NEGLIGIBLE).any(1)
            means, covariances = components.given(values[some], kept)
            visible = _mixed(shares[kept], means, covariances.diagonal(dim1=1, dim2=2).clamp(min=0))
            known = pattern == 0
            visible = Moments(torch.where(known, values[some], visible.mean), visible.variance.masked_fill(known, 0.0))
            layers = [visible, hidden.moments(shares[kept], means, covariances, kept)]
            free_energy = -log_weights.logsumexp(0) - factor[some] - evidence.log_scale[some]
            one = torch.ones_like(some)
            parts.append(Part([_as(machine, m) for m in layers], free_energy, one, one * int(Status.CONVERGED)))
            order.append(some)
    back = torch.cat(order).argsort()
    return _reordered(joined(parts, channel, machine.layers[0]), back)


class _Observed(NamedTuple):
    """The components, of which some units were observed with some variances."""

    mixture: GaussianMixture
    observed: Tensor  # (n,), bool
    lower: Tensor  # Cholesky factors of the covariances of what was observed, (C, o, o)

    @staticmethod
    def of(mixture: GaussianMixture, variances: Tensor) -> "_Observed":  # (n,), -1 where nothing was observed
        observed = variances >= 0
        covariances = mixture.covariances[:, observed][:, :, observed]
        return _Observed(mixture, observed, torch.linalg.cholesky(covariances + variances[observed].diag()))

    def log_weights(self, values: Tensor) -> Tensor:  # (R, n) -> (C, R)
        """ln of the weight of each component times its density of the observed values."""
        solved = torch.linalg.solve_triangular(self.lower, self._off(values).mT, upper=False)
        log_det = self.lower.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * solved.shape[1] * math.log(2 * math.pi)
        log_weights: Tensor = (self.mixture.log_weights - log_det).unsqueeze(1) - 0.5 * (solved**2).sum(1)
        return log_weights

    def given(self, values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:  # (R, n) -> (C, R, n), (C, n, n)
        """Means and covariances of some components given the observed values."""
        covariances = self.mixture.covariances[kept]
        across = covariances[:, self.observed]  # (C, o, n)
        gains = torch.cholesky_solve(across, self.lower[kept])
        means = self.mixture.means[kept].unsqueeze(1) + self._off(values)[kept] @ gains
        return means, covariances - gains.mT @ across

    def _off(self, values: Tensor) -> Tensor:  # (C, R, o)
        return values[:, self.observed] - self.mixture.means[:, None, self.observed]


class _Hidden(NamedTuple):
    """Hidden units given a component c and visible states x: h = offset_c + scale_c·(xW), plus noise."""

    weights: Tensor  # (n, h)
    offset: Tensor  # (C, h)
    scale: Tensor
    noise: Tensor  # variances

    @staticmethod
    def of(machine: BoltzmannMachine) -> "_Hidden":
        layer = machine.layers[1]
        blocks = list(layer.blocks) if isinstance(layer, Mixed) else [layer]
        weights = machine.weights[0]
        coupled = coupled_slabs(machine)
        sets = active_sets(int(coupled.sum()), weights)
        n_clusters = max([block.q for block in blocks if isinstance(block, Categorical)], default=1)
        n_components, parts = len(sets) * n_clusters, []  # clusters vary fastest
        for block in blocks:
            if isinstance(block, Categorical):
                identity = torch.eye(n_clusters, dtype=weights.dtype, device=weights.device)
                states = identity.repeat(len(sets), 1)
                parts.append((states, torch.zeros_like(states), torch.zeros_like(states)))
                continue
            assert isinstance(block, Gaussian | SpikeSlab)
            active = weights.new_ones((n_components, block.n))
            if isinstance(block, SpikeSlab):
                active = weights.new_zeros((n_components, block.n))
                active[:, coupled] = sets.repeat_interleave(n_clusters, 0)
            scale = active / block.precision
            offset, noise = scale * block.field, scale
            if isinstance(block, SpikeSlab):  # units without weights have the moments of their prior
                prior = block.moments(Tilt(torch.zeros_like(block.field), 0.0))
                offset, noise = (
                    torch.where(coupled, z, rest) for z, rest in ((offset, prior.mean), (noise, prior.variance))
                )
            parts.append((offset, scale, noise))
        return _Hidden(weights, *(torch.cat(z, 1) for z in zip(*parts, strict=True)))

    def moments(self, shares: Tensor, means: Tensor, covariances: Tensor, kept: Tensor) -> Moments:
        sent, variances = self.offset[kept].unsqueeze(1).repeat(1, shares.shape[1], 1), self.noise[kept].clone()
        linear = self.scale.any(0)
        weights, scale = self.weights[:, linear], self.scale[kept][:, linear]
        sent[:, :, linear] += scale.unsqueeze(1) * (means @ weights)
        variances[:, linear] += scale**2 * ((covariances @ weights) * weights).sum(1).clamp(min=0)
        return _mixed(shares, sent, variances)


def _mixed(shares: Tensor, means: Tensor, variances: Tensor) -> Moments:  # (C, R), (C, R, n), (C, n) -> (R, n)
    mean = torch.einsum("cr,crn->rn", shares, means)
    spread = torch.einsum("cr,crn->rn", shares, (means - mean) ** 2)
    return Moments(mean, spread + shares.T @ variances)


def _as(machine: BoltzmannMachine, moments: Moments) -> Moments:
    return Moments(*(z.to(machine.dtype) for z in moments))


def _reordered(posterior: Posterior, order: Tensor) -> Posterior:
    return Posterior(
        tuple(Moments(*(z[order] for z in layer)) for layer in posterior.moments),
        posterior.free_energy[order],
        posterior.n_solutions[order],
        posterior.status[order],
        posterior.channel,
        posterior.units,
    )
