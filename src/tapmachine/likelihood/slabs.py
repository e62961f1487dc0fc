"""Exact ln Z of Gaussian visible units with spike-and-slab and categorical hidden units, as a sum of determinants.

Given the categorical units and the set of active spike-and-slab units, the visible units are Gaussian. The machine is
therefore a Gaussian mixture, which can be evaluated and sampled exactly.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.data.errors import EstimateError
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.whitening import can_be_whitened, whiten
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab
from tapmachine.units.numerics.intervals import wide

CHUNK_VALUES = 2**21  # maximum number of matrix entries per chunk


class GaussianMixture(NamedTuple):
    """Visible units of a machine as a mixture Σ_c w_c N(x; μ_c, Σ_c).

    Attributes:
        log_weights: Logarithms of the weights w_c, shape (C,). The sum of the weights is the machine's Z.
        means: Means of the components, shape (C, n).
        covariances: Covariances of the components, shape (C, n, n).
    """

    log_weights: Tensor
    means: Tensor
    covariances: Tensor

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:  # (count, n)
        """Draw independent samples of the visible units."""
        component = torch.multinomial(self.log_weights.softmax(0), count, replacement=True, generator=generator)
        like = self.means[component]
        noise = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        lower = torch.linalg.cholesky(self.covariances)
        for index in component.unique():
            rows = component == index
            noise[rows] = noise[rows] @ lower[index].T
        return like + noise


def can_sum_slabs(machine: BoltzmannMachine, bits: float = 12) -> bool:
    """Return whether the visible units are a mixture of at most 2^bits Gaussians.

    The hidden units must be `SpikeSlab` units, one `Categorical` unit, or both. Spike-and-slab units whose weights are
    all zero are not counted.
    """
    layers = list(machine.layers)
    if len(layers) != 2 or type(layers[0]) is not Gaussian:
        return False
    blocks = list(layers[1].blocks) if isinstance(layers[1], Mixed) else [layers[1]]
    slabs = [block for block in blocks if type(block) is SpikeSlab]
    clusters = [block for block in blocks if type(block) is Categorical and block.n == 1]
    if len(slabs) + len(clusters) < len(blocks) or len(slabs) > 1 or len(clusters) > 1:
        return False
    return int(coupled_slabs(machine).sum()) + sum(math.log2(block.q) for block in clusters) <= bits


def is_gaussian_mixture(machine: BoltzmannMachine) -> bool:
    """Return whether the machine satisfies `can_sum_slabs`, possibly after integrating over hidden Gaussian units."""
    if machine.n_rows is not None:
        return False
    return can_sum_slabs(whiten(machine).machine if can_be_whitened(machine) else machine)


def slabs_log_partition(machine: BoltzmannMachine) -> Tensor:  # (), float64
    """Exact ln Z of a machine that satisfies `can_sum_slabs`, differentiable.

    The result is infinite if the couplings are too strong for a finite Z. Hidden units without weights do not
    contribute.
    """
    visible, hidden = machine.layers[0], _Hidden.of(machine)
    assert isinstance(visible, Gaussian)
    precision, mean = wide(visible.precision), wide(visible.field) / wide(visible.precision)
    weights, field = hidden.weights / precision.sqrt().unsqueeze(1), mean @ hidden.weights + hidden.field
    centers = hidden.centers / precision.sqrt().unsqueeze(1)
    of_sets = active_sets_log_partition(
        weights.T @ weights, field + centers.T @ weights, hidden.log_odds, hidden.precision
    )
    of_clusters = hidden.log_shares + mean @ hidden.centers + 0.5 * (centers**2).sum(0)
    return (of_clusters + of_sets).logsumexp(0) - hidden.log_partition


def active_sets_log_partition(overlaps: Tensor, field: Tensor, log_odds: Tensor, precision: Tensor) -> Tensor:  # (K,)
    """Compute ln Σ_S exp(Σ_S R) ∫ exp(Uh − ½h(V − G)h) dh over the sets S of active units, shape (K,).

    The result is differentiable, and infinite if Z is infinite.

    Args:
        overlaps: Overlaps of the weights, G = Wᵀ D(1/V_visible) W, shape (n, n).
        field: Field U plus the fields from the means of the visible units, for each of K means, shape (K, n).
        log_odds: Log-odds R of active units, shape (n,).
        precision: Precisions V of active units, shape (n,).
    """
    n = field.shape[1]
    if n == 0:
        return field.sum(1)
    matrix, parts = precision.diag() - overlaps, []
    for active in active_sets(n, field).split(max(1, CHUNK_VALUES // n**2)):  # (S, n)
        both = active.unsqueeze(2) * active.unsqueeze(1)
        identity = torch.eye(n, dtype=field.dtype, device=field.device)
        lower, failed = torch.linalg.cholesky_ex(both * matrix + (1 - both) * identity)
        sent = active.unsqueeze(2) * field.T  # (S, n, K)
        solved = torch.linalg.solve_triangular(lower, sent, upper=False)
        of_set = active @ (log_odds + 0.5 * math.log(2 * math.pi)) - lower.diagonal(dim1=1, dim2=2).log().sum(1)
        of_set = of_set.unsqueeze(1) + 0.5 * (solved**2).sum(1)
        parts.append(torch.where(failed.unsqueeze(1) == 0, of_set, torch.inf))
    return torch.cat(parts).logsumexp(0)


@torch.no_grad()
def as_gaussian_mixture(machine: BoltzmannMachine) -> GaussianMixture:  # in float64
    """Convert the visible units of a machine that satisfies `is_gaussian_mixture` to a mixture, in float64.

    Raises:
        EstimateError: If Z is infinite.

    Example:
        >>> from tapmachine import Gaussian, SpikeSlab, rbm
        >>> from tapmachine.likelihood.slabs import as_gaussian_mixture
        >>> as_gaussian_mixture(rbm(Gaussian(3), SpikeSlab(2))).means.shape
        torch.Size([4, 3])
    """
    if can_be_whitened(machine):
        whitened = whiten(machine)
        mixture, transform = as_gaussian_mixture(whitened.machine), whitened.transform
        return GaussianMixture(
            mixture.log_weights + whitened.log_partition_gain,
            whitened.shift + mixture.means @ transform.T,
            transform @ mixture.covariances @ transform.T,
        )
    visible, hidden = machine.layers[0], _Hidden.of(machine)
    assert isinstance(visible, Gaussian)
    prior, mean = wide(visible.precision), wide(visible.field) / wide(visible.precision)
    active = active_sets(len(hidden.field), hidden.field)  # (S, h)
    precisions = prior.diag() - (active.unsqueeze(1) * hidden.weights / hidden.precision) @ hidden.weights.T
    lower, failed = torch.linalg.cholesky_ex(precisions)
    if bool(failed.any()):
        raise EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")
    # Exponents of the visible units conditional on a set and a cluster: linear·x − ½ x·precision·x.
    slabs = active @ (hidden.weights * (hidden.field / hidden.precision)).T  # (S, n)
    linear = wide(visible.field) + slabs.unsqueeze(1) + hidden.centers.T  # (S, K, n)
    means = torch.cholesky_solve(linear.mT, lower).mT
    of_slabs = hidden.log_odds + 0.5 * (
        hidden.field**2 / hidden.precision + math.log(2 * math.pi) - hidden.precision.log()
    )
    log_weights = (active @ of_slabs).unsqueeze(1) + hidden.log_shares + 0.5 * (linear * means).sum(2)
    log_weights = log_weights - lower.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
    log_weights = log_weights + 0.5 * (prior.log() - prior * mean**2).sum() - hidden.log_partition
    covariances = torch.cholesky_inverse(lower).unsqueeze(1).expand(-1, linear.shape[1], -1, -1)
    return GaussianMixture(log_weights.flatten(), means.flatten(0, 1), covariances.flatten(0, 1))


def coupled_slabs(machine: BoltzmannMachine) -> Tensor:  # (n_slabs,), bool
    """Mask of the spike-and-slab hidden units with nonzero weights."""
    layer, weights = machine.layers[1], machine.weights[0].detach()
    blocks = list(layer.blocks) if isinstance(layer, Mixed) else [layer]
    parts = weights.split(layer.sizes if isinstance(layer, Mixed) else [math.prod(layer.state_shape)], 1)
    of_slabs = [w for block, w in zip(blocks, parts, strict=True) if type(block) is SpikeSlab]
    coupled: Tensor = (torch.cat(of_slabs or [weights[:, :0]], 1) != 0).any(0)
    return coupled


def active_sets(n: int, like: Tensor) -> Tensor:  # (2^n, n)
    """Return indicators (0 or 1) of the active units in all subsets of n units, shape (2^n, n)."""
    codes, places = torch.arange(2**n, device=like.device), torch.arange(n, device=like.device)
    return ((codes.unsqueeze(1) >> places) & 1).to(like.dtype)


class _Hidden(NamedTuple):
    """Parameters of h spike-and-slab units with weights and of K clusters.

    Cluster k contributes log_shares_k + centers_k·x to the exponent, and an active unit contributes R + (U + w·x)h −
    ½Vh². The priors are normalized by exp(log_partition). Without a categorical unit, there is a single cluster without
    weights.
    """

    weights: Tensor  # (n, h)
    field: Tensor
    log_odds: Tensor
    precision: Tensor
    centers: Tensor  # (n, K)
    log_shares: Tensor
    log_partition: Tensor

    @staticmethod
    def of(machine: BoltzmannMachine) -> "_Hidden":
        layer, weights = machine.layers[1], wide(machine.weights[0])
        blocks = list(layer.blocks) if isinstance(layer, Mixed) else [layer]
        sizes = layer.sizes if isinstance(layer, Mixed) else [math.prod(layer.state_shape)]
        centers, log_shares = weights.new_zeros((len(weights), 1)), weights.new_zeros(1)
        of_slabs, field, log_odds, precision = weights[:, :0], *(weights.new_zeros(0) for _ in range(3))
        coupled = coupled_slabs(machine)
        for block, part in zip(blocks, weights.split(sizes, 1), strict=True):
            if isinstance(block, SpikeSlab):
                of_slabs = part[:, coupled]
                field, log_odds, precision = (wide(z)[coupled] for z in (block.field, block.log_odds, block.precision))
            elif isinstance(block, Categorical):
                centers, log_shares = part, wide(block.field)[0].log_softmax(0)
        at_rest = softplus(log_odds + 0.5 * (field**2 / precision + math.log(2 * math.pi) - precision.log())).sum()
        return _Hidden(of_slabs, field, log_odds, precision, centers, log_shares, at_rest)
