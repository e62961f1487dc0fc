"""Exact posteriors for machines whose visible distribution is a mixture of Gaussians.

The supported channels are Gaussian noise, missing values and linear measurements.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Status, Tilt
from tapmachine.likelihood.products import is_product_mixture
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
from tapmachine.posterior.table import TablePosterior
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab

CHUNK_VALUES = 2**24  # maximum number of component means in memory
SMALLEST_NOISE = 1e-6  # smallest standard deviation of the noise, relative to the size of a measurement
NEGLIGIBLE = 1e-14  # weight below which a component is omitted from the moments


def has_exact_posterior(machine: BoltzmannMachine, channel: Channel) -> bool:
    """Return whether `exact_posterior` supports the machine and the channel.

    Machines with few `SpikeSlab` hidden units and machines fitted to real-valued tables are supported.
    """
    if type(channel) is Missing and is_product_mixture(machine):
        return True
    return type(channel) in (GaussianNoise, Missing) and is_gaussian_mixture(machine)


@torch.no_grad()
def exact_posterior(machine: BoltzmannMachine, y: Tensor, channel: Channel) -> Posterior:  # (K, n)
    """Compute the exact posterior given observations; requires that `has_exact_posterior` returns True.

    Every component of the mixture is conditioned on the observed values. Its weight is multiplied by the density of the
    observed values. Rows with the same missing values and the same noise share all matrices.
    """
    if isinstance(machine.layers[0], Mixed):
        assert isinstance(channel, Missing)
        return _of_table(machine, channel.as_states(y), channel)
    double = in_double(machine)
    units, mixture = double.layers[0], as_gaussian_mixture(double)
    evidence = channel.evidence(y.to(double.dtype), units)
    # Up to a factor, a tilt exp(Dx − ½Ex²) is an observation D/E with variance 1/E. A known unit has variance 0.
    is_tilted: Tensor = evidence.precision > 0
    values = torch.where(is_tilted, evidence.field / evidence.precision, evidence.states)
    variances = torch.where(is_tilted, 1 / evidence.precision, torch.where(evidence.known, 0.0, torch.nan))
    factor = 0.5 * torch.where(is_tilted, (2 * math.pi * variances).log() + evidence.field * values, 0.0).sum(1)
    identity = torch.eye(units.n, dtype=double.dtype, device=double.device)
    patterns, pattern_of = variances.nan_to_num(-1.0).unique(dim=0, return_inverse=True)
    groups = []
    for index, pattern in enumerate(patterns):
        rows, observed = (pattern_of == index).nonzero().flatten(), pattern >= 0
        components = _Observed.of(mixture, identity[observed], pattern[observed])
        groups.append(_Group(rows, components, values[rows][:, observed]))
    posterior = _conditioned(machine, double, groups, channel, -factor - evidence.log_scale)
    visible, *hidden = posterior.moments
    known = evidence.known.to(visible.mean.device)
    mean = torch.where(known, evidence.states.to(visible.mean), visible.mean)
    visible = Moments(mean, visible.variance.masked_fill(known, 0.0))
    return replace(posterior, moments=(visible, *hidden))


@torch.no_grad()
def exact_recovery(
    machine: BoltzmannMachine, values: Tensor, matrix: Tensor, noise: float | None, channel: Channel
) -> tuple[Posterior, float]:
    """Compute the exact posterior given linear combinations of the visible units with Gaussian noise.

    Args:
        machine: A machine whose visible distribution is a mixture of Gaussians.
        values: Measured combinations, of shape (K, M), with NaN for missing measurements.
        matrix: Coefficients, of shape (M, n).
        noise: Standard deviation of the noise; None to estimate it by maximum likelihood.
        channel: Channel to store in the result.

    Returns:
        The posterior and the standard deviation of the noise.
    """
    from scipy.optimize import minimize_scalar

    double = in_double(machine)
    mixture = as_gaussian_mixture(double)
    values, matrix = (z.to(double.device, double.dtype) for z in (values, matrix))
    missing = torch.isnan(values)
    patterns, pattern_of = missing.unique(dim=0, return_inverse=True)

    def given(noise: float) -> Posterior:
        groups = []
        for index, pattern in enumerate(patterns):
            rows, seen = (pattern_of == index).nonzero().flatten(), ~pattern
            variances = torch.full_like(matrix[seen, 0], noise**2)
            groups.append(_Group(rows, _Observed.of(mixture, matrix[seen], variances), values[rows][:, seen]))
        return _conditioned(machine, double, groups, channel, values.new_zeros(len(values)))

    spread = float(values[~missing].square().mean().sqrt())
    smallest = max(SMALLEST_NOISE * spread, torch.finfo(torch.float32).tiny)
    if noise is None:
        ends = math.log(smallest), math.log(max(spread, 2 * smallest))
        found = minimize_scalar(
            lambda log_noise: float(given(math.exp(log_noise)).free_energy.mean()), bounds=ends, method="bounded"
        )
        noise = math.exp(found.x)
    return given(max(noise, smallest)), noise


def _of_table(machine: BoltzmannMachine, x: Tensor, channel: Channel) -> Posterior:
    """Compute the posterior for a table with columns of several types."""
    given = TablePosterior.of(machine, x)
    hidden = given.hidden_moments(in_double(machine))
    one = torch.ones(len(x), dtype=torch.long, device=machine.device)
    part = Part(
        [_as(machine, given.moments), _as(machine, hidden)], -given.log_weight, one, one * int(Status.CONVERGED)
    )
    return joined([part], channel, machine.layers[0])


class _Group(NamedTuple):
    """Rows with the same observed columns and the same noise."""

    rows: Tensor
    components: "_Observed"
    values: Tensor  # (R, o)


def _conditioned(
    machine: BoltzmannMachine, double: BoltzmannMachine, groups: list[_Group], channel: Channel, extra: Tensor
) -> Posterior:
    """Compute the posterior of all groups of rows; `extra` is added to the free energies of the rows."""
    hidden, order, parts = _Hidden.of(double), [], []
    for rows, components, values in groups:
        for some in torch.arange(len(rows)).split(max(1, CHUNK_VALUES // components.mixture.means.numel())):
            log_weights = components.log_weights(values[some])
            shares = log_weights.softmax(0)
            kept = (shares > NEGLIGIBLE).any(1)
            means, covariances = components.given(values[some], kept)
            visible = _mixed(shares[kept], means, covariances.diagonal(dim1=1, dim2=2).clamp(min=0))
            layers = [visible, hidden.moments(shares[kept], means, covariances, kept)]
            one = torch.ones_like(rows[some])
            free_energy = extra[rows[some]] - log_weights.logsumexp(0)
            parts.append(Part([_as(machine, m) for m in layers], free_energy, one, one * int(Status.CONVERGED)))
            order.append(rows[some])
    return _reordered(joined(parts, channel, machine.layers[0]), torch.cat(order).argsort())


class _Observed(NamedTuple):
    """Components of a Gaussian mixture, given noisy observations of linear combinations of its variables."""

    mixture: GaussianMixture
    matrix: Tensor  # (o, n)
    lower: Tensor  # Cholesky factors of the covariances of the observed values, (C, o, o)

    @staticmethod
    def of(mixture: GaussianMixture, matrix: Tensor, variances: Tensor) -> "_Observed":  # (o, n), (o,)
        covariances = matrix @ mixture.covariances @ matrix.mT
        return _Observed(mixture, matrix, torch.linalg.cholesky(covariances + variances.diag()))

    def log_weights(self, values: Tensor) -> Tensor:  # (R, o) -> (C, R)
        """Compute the logarithm of each component's weight times its density at the observed values."""
        solved = torch.linalg.solve_triangular(self.lower, self._off(values).mT, upper=False)
        log_det = self.lower.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * solved.shape[1] * math.log(2 * math.pi)
        log_weights: Tensor = (self.mixture.log_weights - log_det).unsqueeze(1) - 0.5 * (solved**2).sum(1)
        return log_weights

    def given(self, values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:  # (R, o) -> (C, R, n), (C, n, n)
        """Compute the means and covariances of the selected components given the observed values."""
        covariances = self.mixture.covariances[kept]
        across = self.matrix @ covariances  # (C, o, n)
        gains = torch.cholesky_solve(across, self.lower[kept])
        means = self.mixture.means[kept].unsqueeze(1) + self._off(values)[kept] @ gains
        return means, covariances - gains.mT @ across

    def _off(self, values: Tensor) -> Tensor:  # (C, R, o)
        return values - (self.mixture.means @ self.matrix.T).unsqueeze(1)


class _Hidden(NamedTuple):
    """Coefficients of the hidden units h = offset_c + scale_c·(xW) + noise, given component c and visible states x."""

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
