"""Validation and conversion of observations for a machine."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.checks import check_tensor
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, check_rows
from tapmachine.machine.conditioning import is_clamped
from tapmachine.posterior.channels.evidence import check_alphabet


def as_observations(machine: BoltzmannMachine, y: Tensor | np.ndarray[Any, Any], name: str = "y") -> Tensor:  # (K, n)
    """Convert observations to a tensor on the machine's device; floats are converted to the machine's dtype."""
    check_free(machine)
    y = as_tensor(y, name)
    n = machine.layers[0].n
    if y.dim() != 2 or y.shape[1] != n or len(y) == 0:
        raise ValueError(f"{name} has shape {tuple(y.shape)}; expected (K, {n}), K ≥ 1")
    return y.to(machine.device, machine.dtype if y.is_floating_point() or y.dtype == torch.bool else None)


def check_free(machine: BoltzmannMachine) -> None:
    """Raise a ValueError if the argument is not an unconditioned machine."""
    check_machine(machine)
    if machine.n_rows is not None:
        raise ValueError(f"the machine is already conditioned on {machine.n_rows} rows; use the unconditioned machine")
    if is_clamped(machine):
        raise ValueError(
            "the machine has clamped units; use the unconditioned machine, and pass the values as observations"
        )


def as_examples(machine: BoltzmannMachine, data: Tensor | np.ndarray[Any, Any]) -> Tensor:  # (N, *state_shape)
    """Convert complete rows of data to states of the visible layer."""
    rows = as_tensor(data, "data")
    units = machine.layers[0]
    if len(units.state_shape) == 2 and rows.is_floating_point() and rows.dim() == 2:
        check_alphabet(rows, units)
        rows = units.from_data(rows)
    try:
        return check_rows(machine, rows)
    except ValueError as error:
        raise ValueError(f"data: {error}") from None


def as_tensor(values: object, name: str) -> Tensor:
    """Convert a tensor or an array to a tensor of real numbers."""
    if not isinstance(values, Tensor | np.ndarray):
        raise ValueError(f"{name} is a {type(values).__name__}; expected a tensor or an array of real numbers")
    return check_tensor(values, name)
