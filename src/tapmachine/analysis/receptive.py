"""Receptive fields of hidden units, ranked by spread and by activation."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.features import hidden_means
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine

MOST_ROWS = 10_000  # number of rows that is sufficient to estimate mean activations
NORM = 0.1  # p of the ℓ_p norm that measures the spread of a field


class ReceptiveFields(NamedTuple):
    """Receptive fields of a hidden layer, with the spread and activation by which they are ranked.

    Attributes:
        fields: Weights between each hidden unit and the visible units, shape (n_hidden, n_visible), with additional
            dimensions for categorical units. For higher layers, the weights are the product W₁W₂… of the weight
            matrices.
        spread: Logarithm of the ratio of the ℓ_p norm (p = 0.1) of each field to its largest absolute weight, shape
            (n_hidden,). The spread is large for a field that covers many visible units.
        activation: Mean of each hidden unit given a row of the data, averaged over the rows, shape (n_hidden,); NaN
            without data.
        layer: Number of the hidden layer, starting at 1.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis import receptive_fields
        >>> receptive_fields(rbm(Binary(4), Binary(2))).spread.shape
        torch.Size([2])
    """

    fields: Tensor
    spread: Tensor
    activation: Tensor
    layer: int = 1

    def by_spread(self, count: int | None = None, *, localized: bool = False) -> Tensor:
        """Return the indices of the `count` fields with the largest spread, or the smallest if `localized` is True."""
        return self.spread.argsort(descending=not localized, stable=True)[:count]

    def by_activation(self, count: int | None = None, *, least: bool = False) -> Tensor:
        """Return the indices of the `count` most active units, or of the least active ones if `least` is True."""
        return self.activation.argsort(descending=not least, stable=True)[:count]


@torch.no_grad()
def receptive_fields(machine: BoltzmannMachine, x: Tensor | None = None, layer: int = 1) -> ReceptiveFields:
    """Compute the receptive fields of a hidden layer, their spread, and the activation of the units [fig:bmnist-rf].

    Args:
        machine: A machine with at least one hidden layer.
        x: Data of shape (N, n_visible) from which activations are computed (default: no activations).
        layer: Number of the hidden layer, starting at 1 (default: 1).

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
        raise ValueError("a pairwise machine has no hidden units; expected a machine with hidden layers")
    if isinstance(layer, bool) or not (isinstance(layer, int) and 1 <= layer < len(machine.layers)):
        raise ValueError(f"layer is {layer!r}; expected a hidden layer from 1 to {len(machine.layers) - 1}")
    means = None if x is None else hidden_means(machine, x)[layer - 1]
    return _ranked(machine, layer, means)


@torch.no_grad()
def rank_all_fields(machine: BoltzmannMachine, x: Tensor) -> tuple[ReceptiveFields, ...]:
    """Compute the receptive fields of every hidden layer, with activations averaged over a subset of the rows."""
    if machine.is_pairwise:
        return ()
    means = hidden_means(machine, spaced(x, MOST_ROWS))
    return tuple(_ranked(machine, layer, of_layer) for layer, of_layer in enumerate(means, 1))


def _ranked(machine: BoltzmannMachine, layer: int, means: Tensor | None) -> ReceptiveFields:
    through = machine.weights[0].detach().double()
    for between in list(machine.weights)[1:layer]:
        through = through @ between.detach().double()
    weights, tiny = through.T, torch.finfo(torch.float64).tiny  # (n_hidden components, n_visible components)
    relative = weights.abs() / weights.abs().amax(1, keepdim=True).clamp(min=tiny)
    spread = (relative**NORM).sum(1).clamp(min=tiny).log() / NORM
    activation = torch.full_like(spread, torch.nan) if means is None else means.flatten(1).mean(0, dtype=torch.float64)
    fields = weights.unflatten(-1, machine.layers[0].state_shape)
    return ReceptiveFields(fields.cpu(), spread.cpu(), activation.cpu(), layer)
