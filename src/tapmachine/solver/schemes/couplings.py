"""Couplings of a machine, and the mean and variance of the fields that the couplings exert on each layer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

FEW_PARTICLES = 1024  # on a GPU with at most this number, a launch costs more than stacking means and variances
VERY_FEW_PARTICLES = 256  # with at most this number, one product leaves most of a GPU idle, so it is split
MOST_PARTS, SMALLEST_PART = 8, 64
ALIGNED = 4  # products are slow if the number of values is not a multiple of this


class Incoming(NamedTuple):
    """Mean θ and variance κ of the field ΣWx' that the neighbors' states x' exert on a layer's units.

    For units with q states, κ contains the covariance matrices of their q fields and has the shape (K, n, q, q). For a
    mixed layer, the values of all blocks are flattened and concatenated (see `Units.reaction_shape`).
    """

    mean: Tensor  # θ
    variance: Tensor  # κ


class Sender(NamedTuple):
    """Sending layer, with the weights W between the sending and the receiving units."""

    layer_index: int  # index of the sending layer
    weights: Tensor  # W, (components of the sender, components of the receiver)
    squares: Tensor  # W²; for receivers with q states, all products of two weights of a unit's states
    both: Tensor | None  # [Wᵀ, W²ᵀ] side by side on a GPU, if both are matrices of the same shape
    states: tuple[tuple[int, int, int], ...]  # blocks of the sender's units with q states: first component, n, q
    is_state: Tensor | None  # mask of the components in these blocks; None if it would contain all components
    shape: tuple[int, ...]  # state_shape of the receiver
    products: Callable[[Tensor], Tensor]  # `weight_products` of the receiver

    def send_mean(self, moments: Moments) -> Tensor:  # (K, *shape)
        """Return the mean Wa' of the field on the receiving layer."""
        field_mean = moments.mean.flatten(1) @ self.weights
        return field_mean if len(self.shape) == 1 else field_mean.unflatten(-1, self.shape)

    def send(self, moments: Moments) -> tuple[Tensor, Tensor]:  # (K, *shape), (K, *shape, *shape[1:])
        """Return the mean Wa' and the variance W²c' of the field on the receiving layer."""
        mean, variance = moments
        if self.states:
            return self._send_states(mean, variance)
        if self.both is not None and len(mean) <= FEW_PARTICLES:
            return products_in_one_launch(mean, variance, self.both)
        if len(self.shape) == 1:
            return mean @ self.weights, variance @ self.squares
        return self._shaped(mean @ self.weights, variance @ self.squares)

    def _send_states(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Implement `send` for categorical units, with Var(Σ_α W_α x_α) = Σ_α W_α² a_α − (Σ_α W_α a_α)²."""
        flat = mean.flatten(1)
        field_mean = flat @ self.weights
        field_variance = (flat if self.is_state is None else torch.where(self.is_state, flat, variance)) @ self.squares
        for start, n, q in self.states:
            of_block = slice(start, start + n * q)
            means, weights = flat[:, of_block].unflatten(-1, (n, q)), self.weights[of_block].unflatten(0, (n, q))
            by_unit = torch.einsum("knq,nqm->knm", means, weights)
            if len(self.shape) == 1:
                field_variance = field_variance - self.products(by_unit).sum(1)
            else:
                by_unit = by_unit.unflatten(-1, self.shape)
                field_variance = field_variance - torch.einsum("ksia,ksib->kiab", by_unit, by_unit).flatten(1)
        if len(self.shape) > 1:
            return self._shaped(field_mean, field_variance)
        is_variance = field_variance.shape == field_mean.shape  # no covariances, which may be negative
        return field_mean, field_variance.clamp(min=0) if is_variance else field_variance

    def _shaped(self, field_mean: Tensor, field_variance: Tensor) -> tuple[Tensor, Tensor]:
        """Reshape so that the q states of each receiving unit, and their pairs, have separate dimensions."""
        shape = self.shape
        return field_mean.unflatten(-1, shape), field_variance.unflatten(-1, (*shape, *shape[1:]))


class Couplings:
    """Couplings of a machine and their squares, arranged by receiving layer for use in sweeps.

    Args:
        machine: The machine whose couplings are used.
        differentiable: Whether gradients flow into the machine's weights. By default, the weights are detached.
    """

    def __init__(self, machine: BoltzmannMachine, differentiable: bool = False) -> None:
        layers = list(machine.layers)
        self.is_pairwise = machine.is_pairwise
        # Every edge has exactly one end in an odd layer; a pairwise machine contains every pair twice.
        self.receivers = [0] if machine.is_pairwise else list(range(1, len(layers), 2))
        self.multiplicity = 0.5 if machine.is_pairwise else 1.0
        self.unbounded = [not layer.is_bounded() for layer in layers]
        self.shapes = [layer.state_shape for layer in layers]
        self.reaction_shapes = [layer.reaction_shape for layer in layers]
        self._layers = layers
        self.weights = [weights.detach() for weights in machine.weights]
        self.senders: list[list[Sender]] = [[] for _ in layers]  # senders to each layer
        for below, above, weights in machine.edges():
            w = weights if differentiable else weights.detach()
            self._connect(below, above, w)
            if below != above:
                self._connect(above, below, w.T if differentiable else w.T.contiguous())

    def _connect(self, sender: int, receiver: int, weights: Tensor) -> None:
        shape = self.shapes[receiver]
        both = None
        states = tuple(self._layers[sender].categorical_blocks)
        products = self._layers[receiver].weight_products
        has_matrices = self.reaction_shapes[receiver] != shape
        if not (states or has_matrices) and _in_one_launch(weights):
            # On a GPU, products of rows with rows are fastest.
            both = torch.cat((weights.T, weights.T**2), -1)
            weights, squares = both[:, : len(weights)].T, both[:, len(weights) :].T
        else:
            squares = products(weights)
        is_state = None
        if states and len(self.shapes[sender]) == 1:
            is_state = torch.zeros(len(weights), dtype=torch.bool, device=weights.device)
            for start, n, q in states:
                is_state[start : start + n * q] = True
        self.senders[receiver].append(Sender(sender, weights, squares, both, states, is_state, shape, products))


def _in_one_launch(weights: Tensor) -> bool:
    """Return whether to compute the products with W and W² in one launch, which is faster for small products."""
    return weights.is_cuda


def products_in_one_launch(mean: Tensor, variance: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """Compute aW and cW² from the matrix [Wᵀ, W²ᵀ]; for very few particles, as sums over parts of the senders."""
    n_parts = _n_parts(mean.shape[1]) if len(mean) <= VERY_FEW_PARTICLES else 1
    cut = (z.unflatten(-1, (2 * n_parts, -1)).transpose(0, 1) for z in (torch.cat((mean, variance), -1), both))
    of_moments, of_weights = cut  # views
    by_part = torch.bmm(of_moments, of_weights.mT)
    if n_parts == 1:
        return by_part[0], by_part[1]
    return by_part[:n_parts].sum(0), by_part[n_parts:].sum(0)  # a compiler can fuse both sums with the next operations


def _n_parts(n_senders: int) -> int:
    """Return the largest number of equal parts whose size is efficient on a GPU."""
    for n_parts in range(MOST_PARTS, 1, -1):
        size, rest = divmod(n_senders, n_parts)
        if rest == 0 and size % ALIGNED == 0 and size >= SMALLEST_PART:
            return n_parts
    return 1


def total(parts: Sequence[Tensor]) -> Tensor:
    """Sum one or more tensors without the initial 0 of `sum`, which would cost a kernel launch."""
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def free_energy(
    layers: list[Units],
    couplings: Couplings,
    moments: Sequence[Moments],
    tilts: Sequence[Tilt],
    incoming: Sequence[Incoming],
) -> Tensor:  # (K,), float64
    """Compute the free energy F = Σ_units KL(tilted prior ‖ prior) − Σ_edges [Waa' + ½W²cc'] [eq:tapFE].

    The Kullback-Leibler divergence of a unit is Ba − ½A(a² + c) − ln Z(B,A).

    Args:
        layers: Layers of the machine.
        couplings: Couplings of the machine.
        moments: Moments of all layers under `tilts`.
        tilts: Tilts of all layers.
        incoming: Mean and variance of the fields on the layers in `couplings.receivers`, computed from `moments`.
    """
    value = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, layer_moments in zip(layers, tilts, moments, strict=True):
        value = value + layer.divergence(tilt, layer_moments).sum(-1, dtype=torch.float64)
    for layer_index, received in zip(couplings.receivers, incoming, strict=True):
        value = value - couplings.multiplicity * coupling_terms(layers[layer_index], received, moments[layer_index])
    return value


def coupling_terms(units: Units, incoming: Incoming, moments: Moments) -> Tensor:  # (K,), float64
    """Sum θa + ½κc over a layer's units, which equals the sum of Waa' + ½W²cc' over their couplings."""
    terms = incoming.mean * moments.mean + units.reaction_energy(incoming.variance, moments)
    return terms.flatten(1).sum(-1, dtype=torch.float64)
