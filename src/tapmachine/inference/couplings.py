"""What a layer's neighbours send to it: the mean and the variance of the field ΣWx'."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.precision import rounds_factors
from tapmachine.units import Units

FEW_PARTICLES = 1024  # on a GPU: up to here a launch costs more than stacking means and variances, and
VERY_FEW_PARTICLES = 256  # up to here one product leaves most of it idle, so that it is cut into
MOST_PARTS, SMALLEST_PART = 8, 64
ALIGNED = 4  # values, without which products are slow


class Incoming(NamedTuple):
    """The field on a layer's units, as its mean θ = ΣWa' and its variance κ = ΣW²c'.

    For units with q states, κ is the covariance matrix of their q fields, of shape (K, n, q, q).
    """

    field: Tensor
    reaction: Tensor

    def own_field(self, mean: Tensor) -> Tensor:
        """B = θ − κa, the field without the unit's own effect on its neighbours (the Onsager reaction)."""
        return self.field - react(self.reaction, mean)

    def precision(self) -> Tensor:
        """A = −κ."""
        matrix = self.reaction.dim() > self.field.dim()
        return -(self.reaction.diagonal(dim1=-2, dim2=-1) if matrix else self.reaction)

    def tilt(self, mean: Tensor) -> Tilt:
        """The tilt that the neighbours send to units with this mean."""
        return Tilt(self.own_field(mean), self.precision())


def react(reaction: Tensor, mean: Tensor) -> Tensor:
    """κa, with a matrix κ for units with q states."""
    if reaction.dim() > mean.dim():
        return (reaction @ mean.unsqueeze(-1)).squeeze(-1)
    return reaction * mean


class _Sender(NamedTuple):
    layer: int
    weights: Tensor  # (components of the sender, components of the receiver)
    squares: Tensor  # W², or for receivers with q states all products of two weights of a unit's states
    both: Tensor | None  # [Wᵀ, W²ᵀ] side by side on a GPU, where both are matrices of one shape
    has_states: bool  # whether the sender's units have q states


class Couplings:
    """The couplings of a machine, arranged for sweeps: oriented towards the receiver, with their squares.

    Args:
        machine: any machine. Its weights are detached, unless
        differentiable: gradients are to flow into them.
    """

    def __init__(self, machine: BoltzmannMachine, differentiable: bool = False) -> None:
        layers = machine.units()
        self.is_pairwise = machine.is_pairwise
        # Every edge ends in one layer with an odd number; a pairwise machine meets every pair twice.
        self.receivers = [0] if machine.is_pairwise else list(range(1, len(layers), 2))
        self.share = 0.5 if machine.is_pairwise else 1.0
        self.unbounded = [not layer.is_bounded() for layer in layers]
        self.shapes = [layer.state_shape for layer in layers]
        self.weights = [weights.detach() for weights in machine.weights]
        self.rounds_factors = rounds_factors() and not differentiable and machine.dtype == torch.float32
        self.senders: list[list[_Sender]] = [[] for _ in layers]
        for below, above, weights in machine.edges():
            w = weights if differentiable else weights.detach()
            self._connect(below, above, w)
            if below != above:
                self._connect(above, below, w.T if differentiable else w.T.contiguous())

    def _connect(self, sender: int, receiver: int, weights: Tensor) -> None:
        has_states = len(self.shapes[sender]) > 1
        if len(self.shapes[receiver]) > 1:
            by_unit = weights.unflatten(1, self.shapes[receiver])
            squares = (by_unit.unsqueeze(-1) * by_unit.unsqueeze(-2)).flatten(1)
            self.senders[receiver].append(_Sender(sender, weights, squares, None, has_states))
        elif _in_one_launch(weights):
            # A GPU's fastest products are those of rows with rows.
            both = torch.cat((weights.T, weights.T**2), -1)
            on_mean, on_variance = both[:, : len(weights)].T, both[:, len(weights) :].T
            both = both.bfloat16() if self.rounds_factors else both
            self.senders[receiver].append(_Sender(sender, on_mean, on_variance, both, has_states))
        else:
            self.senders[receiver].append(_Sender(sender, weights, weights**2, None, has_states))

    def field(self, layer: int, moments: list[Moments]) -> Tensor:
        """θ = ΣWa' alone."""
        parts = [moments[sender.layer].mean.flatten(1) @ sender.weights for sender in self.senders[layer]]
        return _shaped(_total(parts), self.shapes[layer])

    def incoming(self, layer: int, moments: list[Moments]) -> Incoming:
        """θ and κ, from the moments of all layers, (K, *state_shape) each."""
        parts = [self._from(sender, moments[sender.layer], layer) for sender in self.senders[layer]]
        if len(parts) == 1:
            field, reaction = parts[0]
        else:
            field, reaction = (_total(terms) for terms in zip(*parts, strict=True))
        shape = self.shapes[layer]
        return Incoming(_shaped(field, shape), _shaped(reaction, (*shape, *shape[1:])))

    def _from(self, sender: _Sender, moments: Moments, layer: int) -> tuple[Tensor, Tensor]:
        mean, variance = moments
        if not sender.has_states:
            if sender.both is not None and (len(mean) <= FEW_PARTICLES or sender.both.dtype != mean.dtype):
                return products_in_one_launch(mean, variance, sender.both)
            return mean @ sender.weights, variance @ sender.squares
        # One unit's q states are exclusive: Var(Σ_α W_α x_α) = Σ_α W_α² a_α − (Σ_α W_α a_α)².
        by_unit = torch.einsum("knq,nqm->knm", mean, sender.weights.unflatten(0, mean.shape[1:]))
        flat = mean.flatten(1)
        field, squares = flat @ sender.weights, flat @ sender.squares
        if len(self.shapes[layer]) == 1:
            return field, (squares - (by_unit**2).sum(1)).clamp(min=0)
        by_unit = by_unit.unflatten(-1, self.shapes[layer])
        return field, squares - torch.einsum("ksia,ksib->kiab", by_unit, by_unit).flatten(1)


def _in_one_launch(weights: Tensor) -> bool:
    """Whether W and W² are multiplied together, which pays where a launch costs more than the product."""
    return weights.is_cuda


def products_in_one_launch(mean: Tensor, variance: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """aW and cW², from [Wᵀ, W²ᵀ]; of very few particles by parts of the senders, whose products are added up."""
    n_parts = _n_parts(mean.shape[1]) if len(mean) <= VERY_FEW_PARTICLES else 1
    cut = (z.unflatten(-1, (2 * n_parts, -1)).transpose(0, 1) for z in (torch.cat((mean, variance), -1), both))
    of_moments, of_weights = cut  # which moved nothing
    if both.dtype == mean.dtype:
        by_part = torch.bmm(of_moments, of_weights.mT)
    else:
        by_part = torch.bmm(of_moments.to(both.dtype), of_weights.mT, out_dtype=mean.dtype)
    if n_parts == 1:
        return by_part[0], by_part[1]
    return by_part[:n_parts].sum(0), by_part[n_parts:].sum(0)  # two sums, which a compiler makes part of what follows


def _n_parts(n_senders: int) -> int:
    """As many as there can be of one size that suits a GPU."""
    for n_parts in range(MOST_PARTS, 1, -1):
        size, rest = divmod(n_senders, n_parts)
        if rest == 0 and size % ALIGNED == 0 and size >= SMALLEST_PART:
            return n_parts
    return 1


def _shaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat if len(shape) == 1 else flat.unflatten(-1, shape)


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def free_energy(
    layers: list[Units],
    couplings: Couplings,
    moments: Sequence[Moments],
    tilts: Sequence[Tilt],
    incoming: Sequence[Incoming],
) -> Tensor:  # (K,), float64
    """F = Σ_units KL(tilted prior ‖ prior) − Σ_edges [Waa' + ½W²cc'] [eq:tapFE].

    The relative entropy of a unit is Ba − ½A(a² + c) − ln Z(B,A).

    Args:
        layers, couplings: of the machine.
        moments, tilts: of all layers; the tilts are those that the moments arise from.
        incoming: what `couplings.receivers` receive where all layers have these moments.
    """
    total = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, own in zip(layers, tilts, moments, strict=True):
        total = total + layer.divergence(tilt, own).sum(-1, dtype=torch.float64)
    for number, field in zip(couplings.receivers, incoming, strict=True):
        total = total - couplings.share * received(field, moments[number])
    return total


def received(incoming: Incoming, moments: Moments) -> Tensor:  # (K,), float64
    """Σ [θa + ½κc] over a layer's units."""
    mean, variance = moments
    if incoming.reaction.dim() > mean.dim():  # ½ tr K C with C = diag a − aaᵀ
        states = -incoming.precision() * mean - react(incoming.reaction, mean) * mean
        terms = incoming.field * mean + 0.5 * states
    else:
        terms = torch.addcmul(incoming.field * mean, incoming.reaction, variance, value=0.5)
    return terms.flatten(1).sum(-1, dtype=torch.float64)
