"""Independent units fitted to data: the log-likelihood that a machine has to exceed to have learned dependencies."""

from copy import deepcopy

import torch
from torch import Tensor

from tapmachine.data.rows import Rows
from tapmachine.machine import BoltzmannMachine


def fit_visible_units(
    machine: BoltzmannMachine, data: Rows, weights: Tensor | None = None
) -> BoltzmannMachine:  # (N, *state_shape), (N,)
    """A copy of a machine whose visible units, taken alone, have the means of the data."""
    fitted = deepcopy(machine)
    fitted.layers[0].fit_to(data, weights)  # type: ignore[arg-type]
    return fitted


def independent_log_likelihood(
    machine: BoltzmannMachine, rows: Tensor, missing: Tensor | None = None
) -> Tensor:  # (N, *state_shape), (N, n) -> (N,), float64
    """ln P(x) of each row by the visible units of a machine alone, without its couplings and without missing units."""
    values = machine.layers[0].log_prior(rows, validate=False)
    values = values if missing is None else values.masked_fill(missing, 0.0)
    return values.sum(-1, dtype=torch.float64)
