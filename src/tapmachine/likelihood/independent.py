"""Independent units fitted to data, as a baseline that a machine exceeds if it has learned dependencies."""

from copy import deepcopy

import torch
from torch import Tensor

from tapmachine.data.rows import Rows
from tapmachine.machine import BoltzmannMachine


def fit_visible_units(
    machine: BoltzmannMachine, data: Rows, weights: Tensor | None = None
) -> BoltzmannMachine:  # (N, *state_shape), (N,)
    """Return a copy of a machine, with the visible units fitted to the data as independent units."""
    fitted = deepcopy(machine)
    fitted.layers[0].fit_to(data, weights)  # type: ignore[arg-type]
    return fitted


def independent_log_likelihood(
    machine: BoltzmannMachine, rows: Tensor, missing: Tensor | None = None
) -> Tensor:  # (N, *state_shape), (N, n) -> (N,), float64
    """Log-likelihood of each row under independent visible units, shape (N,), in float64.

    Missing units do not contribute.
    """
    values = machine.layers[0].log_prior(rows, validate=False)
    values = values if missing is None else values.masked_fill(missing, 0.0)
    return values.sum(-1, dtype=torch.float64)
