"""Exact ln Z of machines with Gaussian visible units, as determinants.

Hidden Gaussian units add to the precision matrix of the visible units. Given a categorical hidden unit and the set of
active spike-and-slab units, the visible units are Gaussian. The machine is therefore a mixture of Gaussians, whose ln Z
is a sum of determinants.
"""

import math
from copy import deepcopy
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.data.errors import DivergenceError, EstimateError
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab, Units
from tapmachine.units.numerics.intervals import wide

CHUNK_VALUES = 2**21  # maximum number of matrix entries per chunk of sets
MOST_BITS = 12  # binary logarithm of the largest number of components of a mixture
MARGIN = 1.1  # visible precisions relative to the smallest possible ones, so that all hidden units have weights
LOG_2PI = math.log(2 * math.pi)


def is_gaussian(machine: BoltzmannMachine) -> bool:
    """Return whether the machine consists of two layers of Gaussian units, as in factor analysis."""
    return len(machine.layers) == 2 and all(type(units) is Gaussian for units in machine.layers)


def gaussian_log_partition(machine: BoltzmannMachine) -> Tensor:  # (), float64
    """Value of ln Z for two layers of Gaussian units, differentiable, or infinity if Z is infinite.

    Let y and y' be the deviations from the means m and m' of the priors, in units of the standard deviations s and s'.
    The exponent is mWm' + by + b'y' + yKy' − ½y² − ½y'², with K = sWs', b = sWm' and b' = s'Wᵀm. Integration over y and
    then over y' gives

        ln Z = mWm' + ½b² + ½(b' + Kᵀb)(1 − KᵀK)⁻¹(b' + Kᵀb) − ½ ln det(1 − KᵀK).
    """
    parameters = [(wide(units.field), wide(units.precision)) for units in machine.layers if isinstance(units, Gaussian)]
    (m, s), (m_above, s_above) = ((field / precision, precision.rsqrt()) for field, precision in parameters)
    weights = wide(machine.weights[0])
    couplings = s.unsqueeze(1) * weights * s_above
    b, b_above = s * (weights @ m_above), s_above * (m @ weights)
    if len(b) < len(b_above):  # use the matrix of the smaller side
        couplings, b, b_above = couplings.T, b_above, b
    identity = torch.eye(len(b_above), dtype=couplings.dtype, device=couplings.device)
    lower, failed = torch.linalg.cholesky_ex(identity - couplings.T @ couplings)
    linear = (b_above + b @ couplings).unsqueeze(1)
    quadratic = b @ b + (linear * torch.cholesky_solve(linear, lower)).sum()
    log_partition = m @ weights @ m_above + 0.5 * quadratic - lower.diagonal().log().sum()
    return torch.where(failed == 0, log_partition, torch.inf)


class Slabs(NamedTuple):
    """Hidden units of a machine, above its Gaussian visible units.

    The hidden layer has blocks of Gaussian units, of s spike-and-slab units with weights, and one categorical unit with
    K states. Given visible states x, state k contributes log_shares_k + centers_k·x to the exponent, and an active unit
    contributes R + (U + w·x)h − ½Vh². Without a categorical unit, K is 1.

    Attributes:
        visible_field, visible_precision: Parameters of the visible units, shape (n,).
        above: Weights (n, g), fields (g,) and precisions (g,) of the Gaussian hidden units; None without such units.
        weights: Weights of the spike-and-slab units, shape (n, s).
        field, log_odds, precision: Parameters of these units, shape (s,).
        centers: Weights of the categorical unit, shape (n, K).
        log_shares: Log-probabilities of its states, shape (K,).
        coupled: Mask of the spike-and-slab units with nonzero weights.
    """

    visible_field: Tensor
    visible_precision: Tensor
    above: tuple[Tensor, Tensor, Tensor] | None
    weights: Tensor
    field: Tensor
    log_odds: Tensor
    precision: Tensor
    centers: Tensor
    log_shares: Tensor
    coupled: Tensor

    @staticmethod
    def of(machine: BoltzmannMachine, bits: float = MOST_BITS) -> "Slabs | None":
        """Return the hidden units above the Gaussian columns of a machine, in float64.

        The result is None unless the layer above the visible units is the last one, its spike-and-slab and categorical
        units have at most 2^bits joint states, and no block is of another type.
        """
        layers = list(machine.layers)
        if len(layers) != 2 or type(layers[0]) not in (Gaussian, Mixed) or machine.n_rows is not None:
            return None
        types = [type(block) for block, _ in blocks_of(layers[1])]
        labels = [block for block, _ in blocks_of(layers[1]) if type(block) is Categorical]
        if not set(types) <= {Gaussian, SpikeSlab, Categorical} or types.count(SpikeSlab) > 1 or len(labels) > 1:
            return None
        if {SpikeSlab, Categorical}.isdisjoint(types) or any(block.n > 1 for block in labels):
            return None
        slabs = Slabs.read(machine)
        return slabs if slabs.weights.shape[1] + math.log2(slabs.centers.shape[1]) <= bits else None

    @staticmethod
    def read(machine: BoltzmannMachine) -> "Slabs":
        """Return the hidden units above the Gaussian columns, without checks."""
        visible, hidden = machine.layers
        columns = [(block, first) for block, first in blocks_of(visible) if isinstance(block, Gaussian)]
        all_weights = wide(machine.weights[0])
        rows = [all_weights[first : first + block.n] for block, first in columns]
        weights = (
            all_weights if len(rows) == 1 and len(rows[0]) == len(all_weights) else torch.cat([all_weights[:0], *rows])
        )
        nothing = weights.new_zeros(0)
        visible_field = torch.cat([nothing, *(wide(block.field) for block, _ in columns)])
        visible_precision = torch.cat([nothing, *(wide(block.precision) for block, _ in columns)])
        centers, log_shares, of_slabs = weights.new_zeros((len(weights), 1)), weights.new_zeros(1), weights[:, :0]
        field = log_odds = precision = nothing
        coupled, gaussians = torch.zeros(0, dtype=torch.bool, device=weights.device), []
        for block, first in blocks_of(hidden):
            part = weights[:, first : first + math.prod(block.state_shape)]
            if isinstance(block, SpikeSlab):
                coupled = (all_weights.detach()[:, first : first + block.n] != 0).any(0)
                of_slabs = part[:, coupled]
                field, log_odds, precision = (wide(z)[coupled] for z in (block.field, block.log_odds, block.precision))
            elif isinstance(block, Gaussian):
                gaussians.append((part, wide(block.field), wide(block.precision)))
            elif isinstance(block, Categorical):
                centers, log_shares = part, wide(block.field)[0].log_softmax(0)
        above = None
        if gaussians:
            w, u, v = zip(*gaussians, strict=True)
            above = torch.cat(w, 1), torch.cat(u), torch.cat(v)
        units = field, log_odds, precision
        return Slabs(visible_field, visible_precision, above, of_slabs, *units, centers, log_shares, coupled)

    @property
    def log_odds_at_rest(self) -> Tensor:  # (s,)
        """Log-odds of the prior probability that a unit is active."""
        return self.log_odds + 0.5 * (self.field**2 / self.precision + LOG_2PI - self.precision.log())

    def base(self) -> "GaussianBase":
        """Return the Gaussian of the visible units without spike-and-slab and categorical units.

        Raises:
            EstimateError: If Z is infinite.
        """
        if self.above is None:
            mean = self.visible_field / self.visible_precision
            zero = mean.new_zeros(())
            return GaussianBase(mean, self.visible_precision.diag(), self.visible_precision.sqrt().diag(), zero)
        weights, field, precision = self.above
        matrix = self.visible_precision.diag() - (weights / precision) @ weights.T
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed) or not bool(torch.isfinite(lower).all()):
            raise infinite()
        linear = self.visible_field + weights @ (field / precision)
        mean = torch.cholesky_solve(linear.unsqueeze(1), lower).squeeze(1)
        # The density at the mean, where deviations from the prior means are small, times the volume of the Gaussian.
        off = mean - self.visible_field / self.visible_precision
        at_mean = 0.5 * (self.visible_precision.log() - self.visible_precision * off**2).sum()
        at_mean = at_mean + (((field + mean @ weights) ** 2 - field**2) / (2 * precision)).sum()
        return GaussianBase(mean, matrix, lower, at_mean - lower.diagonal().log().sum())

    def log_partition(self) -> Tensor:  # ()
        """Exact ln Z, differentiable; infinite if the couplings of spike-and-slab units are too strong for a finite Z.

        Raises:
            EstimateError: If Z is infinite because of the couplings of Gaussian hidden units.
        """
        if self.above is None:  # the Cholesky factor is diagonal
            mean, scale = self.visible_field / self.visible_precision, self.visible_precision.sqrt().unsqueeze(1)
            weights, centers, of_base = self.weights / scale, self.centers / scale, mean.new_zeros(())
        else:
            mean, _, lower, of_base = self.base()
            weights = torch.linalg.solve_triangular(lower, self.weights, upper=False)
            centers = torch.linalg.solve_triangular(lower, self.centers, upper=False)
        field = mean @ self.weights + self.field
        of_sets = active_sets_log_partition(
            weights.T @ weights, field + centers.T @ weights, self.log_odds, self.precision
        )
        of_clusters = self.log_shares + mean @ self.centers + 0.5 * (centers**2).sum(0)
        return (of_clusters + of_sets).logsumexp(0) - softplus(self.log_odds_at_rest).sum() + of_base


class GaussianBase(NamedTuple):
    """Gaussian with ln Z = `log_partition`, its mean, its precision matrix and the Cholesky factor of this matrix."""

    mean: Tensor
    matrix: Tensor
    lower: Tensor
    log_partition: Tensor


def active_sets_log_partition(overlaps: Tensor, field: Tensor, log_odds: Tensor, precision: Tensor) -> Tensor:  # (K,)
    """Compute ln Σ_S exp(Σ_S R) ∫ exp(Uh − ½h(V − G)h) dh over the sets S of active units, shape (K,).

    The result is differentiable, and infinite if Z is infinite.

    Args:
        overlaps: Overlaps of the weights, G = Wᵀ P⁻¹ W with the precision matrix P of the visible units, shape (n, n).
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
        of_set = active @ (log_odds + 0.5 * LOG_2PI) - lower.diagonal(dim1=1, dim2=2).log().sum(1)
        of_set = of_set.unsqueeze(1) + 0.5 * (solved**2).sum(1)
        parts.append(torch.where(failed.unsqueeze(1) == 0, of_set, torch.inf))
    return torch.cat(parts).logsumexp(0)


def active_sets(n: int, like: Tensor) -> Tensor:  # (2^n, n)
    """Return indicators (0 or 1) of the active units in all subsets of n units, shape (2^n, n)."""
    codes, places = torch.arange(2**n, device=like.device), torch.arange(n, device=like.device)
    return ((codes.unsqueeze(1) >> places) & 1).to(like.dtype)


@torch.no_grad()
def in_coordinates(machine: BoltzmannMachine, transform: Tensor, shift: Tensor) -> BoltzmannMachine:
    """Convert a machine for z to a float64 machine for x = shift + transform·z.

    Args:
        machine: A machine with Gaussian visible units and one hidden layer of units that have fields. It is not
            modified.
        transform: Invertible matrix, of shape (n, n).
        shift: Shift, of shape (n,).

    Returns:
        A machine with n additional `Gaussian` hidden units, which represent the correlations between the visible units.
        They precede the hidden units of the original machine.

    Raises:
        DivergenceError: If parameters are non-finite, or so large that their squares overflow.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Gaussian, rbm
        >>> from tapmachine.exact.gaussian import in_coordinates
        >>> transform = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
        >>> in_coordinates(rbm(Gaussian(2), Binary(4)), transform, torch.zeros(2)).summary()
        '2 Gaussian – 6 Mixed'
    """
    visible, hidden = machine.layers
    assert isinstance(visible, Gaussian)
    inverse = torch.linalg.inv(transform.double().to(machine.device))
    shift = shift.double().to(machine.device)
    precision = inverse.T @ (visible.precision.double().unsqueeze(1) * inverse)
    # D − W Wᵀ = P, where D is slightly larger than necessary, relative to the diagonal of P.
    scale = precision.diagonal().sqrt()
    correlations = precision / scale.outer(scale)
    if not all(bool(torch.isfinite(z).all()) for z in (correlations, machine.weights[0])):
        raise DivergenceError("the parameters of the machine are non-finite or too large; use a smaller learning rate")
    values, vectors = torch.linalg.eigh(correlations)
    loadings = scale.unsqueeze(1) * vectors * (MARGIN * values[-1] - values).sqrt()
    diagonal = MARGIN * values[-1] * scale**2
    weights = inverse.T @ machine.weights[0].double()
    columns = Gaussian(visible.n, field=diagonal * shift + inverse.T @ visible.field.double(), precision=diagonal)
    holding = Gaussian(visible.n, field=-shift @ loadings)
    blocks = [(deepcopy(block).double(), first) for block, first in blocks_of(hidden)]
    change = -shift @ weights
    for block, first in blocks:
        field = block.prior_field
        assert field is not None
        field.add_(change[first : first + field.numel()].view_as(field))
    return rbm(columns, Mixed([holding, *(block for block, _ in blocks)]), torch.cat((loadings, weights), 1))


def is_real(block: Units) -> bool:
    """Return whether units are real-valued columns, which may be correlated."""
    return type(block) is Gaussian


def blocks_of(layer: Units) -> list[tuple[Units, int]]:
    """Return the blocks of a layer with the indices of their first components."""
    return list(zip(layer.parts, accumulate(layer.sizes, initial=0), strict=False))


def infinite() -> EstimateError:
    """Return the error for couplings that are too strong for a finite Z."""
    return EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")
