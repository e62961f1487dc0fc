"""Weight of a row as a function of one of its visible units, summed over the hidden units."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.likelihood.weight import CHUNK_VALUES
from tapmachine.machine import BoltzmannMachine

LogWeight = Callable[[Tensor], Tensor]  # (Q, N, S) -> (Q, N, S): at Q values of each of S units in N rows


def conditional_log_weight(
    machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None
) -> LogWeight:
    """Return the log-weight as a function of one unit, relative to the log-weight of the rest of the row.

    Args:
        machine: Machine with one hidden layer.
        x: States of the visible units, shape (N, n).
        chosen: Indices of S units for each row, shape (N, S).
        others: Additional field on the hidden units, shape (N, *state_shape), or None.
    """
    units, gains = machine.layers[0], Gains(machine, x, others)

    def log_weight(values: Tensor) -> Tensor:  # (Q, N, S)
        # The prior is a function of all units at once: insert the values of the chosen ones.
        everywhere = x.expand(len(values), *x.shape).clone()
        everywhere.scatter_(-1, chosen.expand(values.shape), values)
        log_prior = units.log_prior(everywhere, validate=False).gather(-1, chosen.expand(values.shape))
        gained = [gains(unit, values[..., column]) for column, unit in enumerate(chosen.unbind(1))]
        return log_prior + torch.stack(gained, -1)

    return log_weight


class Gains:
    """Change in Σ_j ln Z_j of the hidden units as a function of one visible unit."""

    def __init__(self, machine: BoltzmannMachine, x: Tensor, others: Tensor | None = None) -> None:
        self.visible, self.hidden = list(machine.layers)
        self.x = x
        self.row = torch.arange(len(x), device=x.device)
        self.field = machine.field_on(1, [x, None])
        self.field = self.field if others is None else self.field + others
        self.weights = machine.coupling(0).detach().unflatten(0, (self.visible.n, -1))  # (n, 1 or q, n_hidden)

    def __call__(self, unit: Tensor, values: Tensor) -> Tensor:  # (N,), and (Q, N) or (Q, N, q) -> (Q, N)
        """Return the changes for Q values of one unit in each row, shape (Q, N)."""
        change = values - self.x[self.row, unit]
        weights = self.weights[unit]  # (N, 1 or q, n_hidden)
        if change.dim() == 3:
            moved = torch.einsum("anq,nqh->anh", change, weights)
        else:
            moved = change.unsqueeze(-1) * weights.squeeze(1)
        after = self.field + moved.unflatten(-1, self.hidden.state_shape)
        return self.hidden.log_partition_gain(self.field.expand_as(after), after)


def row_chunks(machine: BoltzmannMachine, x: Tensor, n_values: int) -> list[slice]:
    """Split rows into chunks, so that the fields for all values of a unit fit into memory."""
    size = max(1, CHUNK_VALUES // (n_values * max(machine.sizes)))
    return [slice(first, first + size) for first in range(0, len(x), size)]


def extreme_fields(machine: BoltzmannMachine) -> tuple[Tensor, Tensor] | None:  # (n,) each
    """Return the smallest and largest fields from the hidden units, or None if the fields are unbounded."""
    hidden = machine.layers[1]
    if not hidden.is_bounded():
        return None
    products = [machine.coupling(0).detach() * bound.expand(hidden.state_shape).flatten() for bound in hidden.bounds()]
    return torch.minimum(*products).sum(-1), torch.maximum(*products).sum(-1)
