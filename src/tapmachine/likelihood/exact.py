"""Exact partition functions, moments and log-likelihoods, by enumeration."""

from collections.abc import Iterator
from math import log2, prod
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.errors import EstimateError
from tapmachine.exact import closed_log_partition
from tapmachine.exact.gaussian import infinite
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.weight import CHUNK_VALUES, log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, n_units
from tapmachine.machine.conditioning import clamp

LARGEST_ENUMERATION = 2**25  # maximum number of states to sum over
SLAB_BITS = 18  # maximum number of spike-and-slab units with weights; each subset needs a determinant


@torch.no_grad()
def exact_log_partition(machine: BoltzmannMachine) -> Tensor:  # () or (K,), float64
    """Compute ln Z exactly, by summing over all states of every other layer.

    The sum is over either the even or the odd layers, whichever have fewer states. Units of the summed layers must have
    finitely many values. The layers in between are integrated over analytically and may have units of any type. For a
    pairwise machine, the sum is over all states. Enumeration is feasible for up to 25 binary units on the smaller side.

    Because the priors are normalized, ln Z is 0 without couplings. The value for unnormalized priors, ln Σ e^{−E} over
    all states, is larger by Σ ln Σ_x e^{Ux}.

    Some machines with `Gaussian` units need no enumeration. For two layers of `Gaussian` units, ln Z is given by a
    determinant. For `Gaussian` visible units and up to 18 `SpikeSlab` hidden units, optionally with one `Categorical`
    unit, ln Z is given by a sum of determinants. `Gaussian` blocks of a `Mixed` hidden layer are integrated over first.
    The `Gaussian` columns of a `Mixed` visible layer may also be coupled to these hidden units, if all other columns
    are coupled only to the `Categorical` unit, as in machines for tables.

    Returns:
        Value of ln Z = −F in float64: a scalar, or one value per row if the machine is conditioned on rows of evidence.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, exact_log_partition, rbm
        >>> exact_log_partition(rbm(TruncatedGaussian(100), Binary(10))).shape
        torch.Size([])
    """
    if machine.n_rows is not None:
        return torch.stack([exact_log_partition(_row(machine, row)) for row in range(machine.n_rows)])
    closed = closed_log_partition(machine, SLAB_BITS)
    if closed is not None:
        if not bool(torch.isfinite(closed)):
            raise infinite()
        return closed
    total = torch.full((), -torch.inf, dtype=torch.float64, device=machine.device)
    for log_weights in (part.log_weights for part in _enumerate(machine)):
        total = torch.logaddexp(total, log_weights.logsumexp(0))
    if not bool(torch.isfinite(total)):
        raise EstimateError(f"ln Z is {total.item():g}: a weight or a parameter of the machine is non-finite")
    return total


@torch.no_grad()
def exact_log_likelihood(machine: BoltzmannMachine, x: Tensor) -> LogLikelihood:
    """Compute the exact log-likelihood ln P(x) of each row, in float64.

    See `exact_log_partition` for feasible sizes. With several hidden layers, every row requires a separate enumeration.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, exact_log_likelihood, rbm
        >>> exact_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4))
        LogLikelihood(-2.7724 ± 0.0005 nats over 4 rows)
    """
    machine, x = for_scoring(machine, x)
    log_partition = exact_log_partition(machine)
    weights = log_weight(machine, x) if len(machine.layers) <= 2 else exact_log_partition(clamp(machine, x))
    return LogLikelihood(weights - log_partition, log_partition, torch.zeros_like(log_partition), n_units(machine))


def observed_weight_by_enumeration(
    machine: BoltzmannMachine, x: Tensor, missing: Tensor, bits: float
) -> Tensor | None:  # (N,), float64
    """Log-weight ln P(x_obs) + ln Z of the observed values of each row, or None if more than 2^bits states are summed.

    With one hidden layer, the result is ln Σ_h P(h) Π_observed P_i(x_i) exp(x_i f_i) Π_missing Z_i(f_i), where f = Wh
    is the field on the visible units.

    Args:
        machine: Unconditioned machine in float64.
        x: States of the visible layer, shape (N, *state_shape). States of missing units are ignored.
        missing: Mask of the missing units, shape (N, n).
        bits: Binary logarithm of the maximum number of states to sum over.
    """
    if len(machine.layers) != 2 or _bits(machine, [1]) > bits:
        if not can_enumerate(machine, bits):
            return None
        return exact_log_partition(clamp(machine, x, mask=~missing, validate=False))
    visible, hidden = machine.layers
    known = (~missing).to(x.dtype)
    seen = (x * known.view(*known.shape, *[1] * (x.dim() - 2))).flatten(1)
    prior = (visible.log_prior(x, validate=False) * known).sum(-1)
    total = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    widest = max(*machine.sizes, len(x))
    for digits in all_digits(hidden.n_states() or [], max(1, CHUNK_VALUES // widest), x.device):
        states = hidden.decode(digits)
        field = machine.field_on(0, [None, states])
        log_prior = hidden.log_prior(states, validate=False).sum(-1)
        of_missing = missing.to(x.dtype) @ visible.log_partition(Tilt(field, 0.0)).T
        log_weights = (seen @ field.flatten(1).T + of_missing + log_prior).double()
        total = torch.logaddexp(total, log_weights.logsumexp(1))
    return total + prior.double()


class ExactMoments(NamedTuple):
    """Exact moments of a machine.

    Attributes:
        moments: Mean and variance of each layer, with the layer's state_shape.
        covariances: Covariance of the coupled units for each weight matrix, with the shape of the matrix.
        log_partition: Value of ln Z, a scalar.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import exact_moments
        >>> exact_moments(rbm(Binary(4), Binary(2))).covariances[0].shape
        torch.Size([4, 2])
    """

    moments: tuple[Moments, ...]
    covariances: tuple[Tensor, ...]
    log_partition: Tensor


@torch.no_grad()
def exact_moments(machine: BoltzmannMachine) -> ExactMoments:
    """Compute the exact mean and variance of each unit and the covariance of each coupled pair by enumeration.

    The moments are computed in float64. See `exact_log_partition` for feasible sizes. The machine must not be
    conditioned on more than one row.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import exact_moments
        >>> exact_moments(rbm(Binary(6), Binary(3))).covariances[0].shape
        torch.Size([6, 3])
    """
    if machine.n_rows is not None:
        if machine.n_rows > 1:
            raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; select one row with .rows()")
        machine = _row(machine, 0)
    log_partition = exact_log_partition(machine)
    n_layers = len(machine.layers)
    first = [torch.zeros(size, dtype=torch.float64, device=machine.device) for size in machine.sizes]
    second = [z.clone() for z in first]
    joint = [torch.zeros(w.shape, dtype=torch.float64, device=machine.device) for w in machine.weights]
    for part in _enumerate(machine):
        weights = (part.log_weights - log_partition).exp()
        means = [part.moments[layer].mean.flatten(1).double() for layer in range(n_layers)]
        for layer in range(n_layers):
            squares = part.moments[layer].variance.flatten(1).double() + means[layer] ** 2
            first[layer] += weights @ means[layer]
            second[layer] += weights @ squares
        for (below, above, _), total in zip(machine.edges(), joint, strict=True):
            total += (weights.unsqueeze(-1) * means[below]).T @ means[above]
    moments = tuple(
        Moments(a.view(layer.state_shape), (b - a**2).clamp(min=0).view(layer.state_shape))
        for layer, a, b in zip(machine.layers, first, second, strict=True)
    )
    pairs = zip(machine.edges(), joint, strict=True)
    covariances = tuple(total - first[below].outer(first[above]) for (below, above, _), total in pairs)
    return ExactMoments(moments, covariances, log_partition)


class _Part(NamedTuple):
    """Chunk of states of the enumerated layers."""

    log_weights: Tensor  # (S,), float64
    moments: list[Moments]  # moments of all layers given these states


def _row(machine: BoltzmannMachine, row: int) -> BoltzmannMachine:
    """Return the machine conditioned on a single row."""
    return machine.rows(torch.tensor(row, device=machine.device))


def _enumerate(machine: BoltzmannMachine) -> Iterator[_Part]:
    layers = list(machine.layers)
    side = _smaller_side(machine)
    others = [layer_index for layer_index in range(len(layers)) if layer_index not in side]
    counts = [count for layer_index in side for count in layers[layer_index].n_states() or []]
    widest = max([machine.sizes[layer_index] for layer_index in others] + [len(counts)])
    for digits in all_digits(counts, max(1, CHUNK_VALUES // widest), machine.device):
        parts = iter(digits.split([len(layers[layer_index].n_states() or []) for layer_index in side], -1))
        states: list[Tensor | None] = [None] * len(layers)
        moments: list[Moments] = [Moments(digits, digits)] * len(layers)
        log_weights = torch.zeros(len(digits), dtype=torch.float64, device=machine.device)
        for layer_index in side:
            x = layers[layer_index].decode(next(parts))
            states[layer_index] = x
            moments[layer_index] = Moments(x, torch.zeros_like(x))
            log_weights += layers[layer_index].log_prior(x, validate=False).sum(-1, dtype=torch.float64)
        if machine.is_pairwise:
            x = moments[0].mean.flatten(1)
            log_weights += 0.5 * ((x @ machine.coupling(0)) * x).sum(-1, dtype=torch.float64)
        for layer_index in others:
            tilt = Tilt(machine.field_on(layer_index, states), 0.0)
            log_partition, moments[layer_index] = layers[layer_index].log_partition_and_moments(tilt)
            log_weights += log_partition.sum(-1, dtype=torch.float64)
        yield _Part(log_weights, moments)


def can_enumerate(machine: BoltzmannMachine, bits: float = log2(LARGEST_ENUMERATION)) -> bool:
    """Return whether the smaller side of the machine has at most 2^bits states."""
    return min(_bits(machine, side) for side in _sides(machine)) <= bits


def _sides(machine: BoltzmannMachine) -> list[list[int]]:
    """Return the two sides that can be enumerated: the odd and the even layers."""
    n_layers = len(machine.layers)
    return [[0]] if machine.is_pairwise else [list(range(1, n_layers, 2)), list(range(0, n_layers, 2))]


def _bits(machine: BoltzmannMachine, side: list[int]) -> float:
    """Base-2 logarithm of the number of states of several layers."""
    counts = [machine.layers[layer_index].n_states() for layer_index in side]
    return float("inf") if None in counts else sum(log2(count) for layer in counts for count in layer or [])


def _smaller_side(machine: BoltzmannMachine) -> list[int]:
    """Return the indices of the layers to enumerate."""
    bits, smaller = min((_bits(machine, side), side) for side in _sides(machine))
    if bits == float("inf"):
        raise ValueError("neither the even nor the odd layers have finitely many states to sum over")
    if bits > log2(LARGEST_ENUMERATION):
        raise ValueError(
            f"the smaller side of the machine has 2^{bits:.0f} states; "
            f"expected at most 2^{log2(LARGEST_ENUMERATION):.0f} states"
        )
    return smaller


def all_digits(counts: list[int], chunk: int, device: torch.device) -> Iterator[Tensor]:
    """Generate all combinations of digits from 0 to counts[i] − 1, in chunks of shape (S, n)."""
    total = prod(counts)
    base = torch.tensor(counts, device=device)
    place = torch.tensor([prod(counts[:i]) for i in range(len(counts))], device=device)
    for first in range(0, total, chunk):
        codes = torch.arange(first, min(first + chunk, total), device=device)
        yield (codes.unsqueeze(-1) // place) % base
