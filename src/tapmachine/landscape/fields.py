"""Receptive fields, ranked."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.conditioning import clamp
from tapmachine.inference import solve
from tapmachine.likelihood.score import CHUNK_VALUES, check_rows
from tapmachine.machine import BoltzmannMachine

NORM = 0.1  # p of the norm that tells spread from localised fields


class FieldRanking(NamedTuple):
    """The receptive fields of the first hidden layer, with what they are ranked by.

    Attributes:
        fields: the weights of each hidden unit, (n_hidden, n_visible), or more dimensions for units with q states.
        spread: ln of the ℓ_p norm of each field, p = 0.1, as a multiple of its largest weight, (n_hidden,): large for a
            field that reaches many visible units.
        activation: the mean of each hidden unit given the data, averaged over them, (n_hidden,); NaN without data.
    """

    fields: Tensor
    spread: Tensor
    activation: Tensor

    def by_spread(self, count: int | None = None, *, localised: bool = False) -> Tensor:
        """Numbers of the most spread fields, or of the most localised ones."""
        return self.spread.argsort(descending=not localised, stable=True)[:count]

    def by_activation(self, count: int | None = None, *, least: bool = False) -> Tensor:
        """Numbers of the fields whose units are the most active, or the least."""
        return self.activation.argsort(descending=not least, stable=True)[:count]


@torch.no_grad()
def rank_fields(machine: BoltzmannMachine, x: Tensor | None = None) -> FieldRanking:
    """The receptive fields of a machine, their spread and how active their units are [fig:bmnist-rf].

    Args:
        machine: with a hidden layer.
        x: data, (N, n_visible), for the activation.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rank_fields, rbm
        >>> machine = rbm(Binary(6), Binary(2))
        >>> with torch.no_grad():
        ...     _ = machine.weights[0].copy_(torch.tensor([[1.0, 1.0], *[[1.0, 0.01]] * 5]))
        >>> rank_fields(machine).by_spread()
        tensor([0, 1])
    """
    if machine.is_pairwise:
        raise ValueError("a pairwise machine has no hidden units, and no receptive fields")
    below = machine.units()[0]
    weights = machine.weights[0].detach().T.double()  # (n_hidden components, n_visible components)
    size = weights.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    spread = ((weights / size).abs() ** NORM).sum(1).clamp(min=torch.finfo(torch.float64).tiny).log() / NORM
    activation = torch.full((len(weights),), torch.nan, dtype=torch.float64, device=weights.device)
    if x is not None:
        rows = check_rows(machine, x)
        total = torch.zeros_like(activation)
        for part in rows.split(max(1, CHUNK_VALUES // max(machine.sizes))):
            total += _hidden_means(machine, part).flatten(1).double().sum(0)
        activation = total / len(rows)
    return FieldRanking(weights.unflatten(-1, below.state_shape).cpu(), spread.cpu(), activation.cpu())


def _hidden_means(machine: BoltzmannMachine, x: Tensor) -> Tensor:
    """Of the first hidden layer given data: exact with one hidden layer, else by TAP."""
    above = machine.units()[1]
    if len(machine.layers) == 2:
        field = (x.flatten(1) @ machine.weights[0]).unflatten(-1, above.state_shape)
        return above.moments(Tilt(field, 0.0)).mean
    return solve(clamp(machine, x, validate=False), None).moments[1].mean
