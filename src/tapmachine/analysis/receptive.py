"""Receptive fields, ranked."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.features import hidden_means
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine

SOME_ROWS = 10_000  # of the data, that are enough for how active units are
NORM = 0.1  # p of the norm that tells spread from localized fields


class ReceptiveFields(NamedTuple):
    """The receptive fields of a hidden layer and the values they are ranked by.

    Attributes:
        fields: the weights of each hidden unit, (n_hidden, n_visible), or more dimensions for units with q states;
            of higher layers through all layers between, W₁W₂….
        spread: ln of the ℓ_p norm of each field, p = 0.1, as a multiple of its largest weight, (n_hidden,): large for a
            field that reaches many visible units.
        activation: the mean of each hidden unit given the data, averaged over them, (n_hidden,); NaN without data.
        layer: which hidden layer it is, from 1.
    """

    fields: Tensor
    spread: Tensor
    activation: Tensor
    layer: int = 1

    def by_spread(self, count: int | None = None, *, localized: bool = False) -> Tensor:
        """Numbers of the most spread fields, or of the most localized ones."""
        return self.spread.argsort(descending=not localized, stable=True)[:count]

    def by_activation(self, count: int | None = None, *, least: bool = False) -> Tensor:
        """Numbers of the fields whose units are the most active, or the least."""
        return self.activation.argsort(descending=not least, stable=True)[:count]


@torch.no_grad()
def receptive_fields(machine: BoltzmannMachine, x: Tensor | None = None, layer: int = 1) -> ReceptiveFields:
    """The receptive fields of a machine, their spread and how active their units are [fig:bmnist-rf].

    Args:
        machine: with a hidden layer.
        x: data, (N, n_visible), for the activation.
        layer: the hidden layer, from 1.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis import receptive_fields
        >>> machine = rbm(Binary(6), Binary(2))
        >>> with torch.no_grad():
        ...     _ = machine.weights[0].copy_(torch.tensor([[1.0, 1.0], *[[1.0, 0.01]] * 5]))
        >>> receptive_fields(machine).by_spread()
        tensor([0, 1])
    """
    if machine.is_pairwise:
        raise ValueError("a pairwise machine has no hidden units, and no receptive fields")
    if isinstance(layer, bool) or not (isinstance(layer, int) and 1 <= layer < len(machine.layers)):
        raise ValueError(f"layer is {layer!r}; the hidden layers are numbered from 1 to {len(machine.layers) - 1}")
    means = None if x is None else hidden_means(machine, x)[layer - 1]
    return _ranked(machine, layer, means)


@torch.no_grad()
def rank_all_fields(machine: BoltzmannMachine, x: Tensor) -> tuple[ReceptiveFields, ...]:
    """Those of every hidden layer, with the activations over some of the data."""
    if machine.is_pairwise:
        return ()
    means = hidden_means(machine, spaced(x, SOME_ROWS))
    return tuple(_ranked(machine, layer, own) for layer, own in enumerate(means, 1))


def _ranked(machine: BoltzmannMachine, layer: int, means: Tensor | None) -> ReceptiveFields:
    below = machine.layers[0]
    through = machine.weights[0].detach().double()
    for between in list(machine.weights)[1:layer]:
        through = through @ between.detach().double()
    weights = through.T  # (n_hidden components, n_visible components)
    size = weights.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    spread = ((weights / size).abs() ** NORM).sum(1).clamp(min=torch.finfo(torch.float64).tiny).log() / NORM
    activation = torch.full((len(weights),), torch.nan, dtype=torch.float64, device=weights.device)
    if means is not None:
        activation = means.flatten(1).mean(0, dtype=torch.float64)
    return ReceptiveFields(weights.unflatten(-1, below.state_shape).cpu(), spread.cpu(), activation.cpu(), layer)
