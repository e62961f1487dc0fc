"""Observations as tensors: checked, as states of units, as evidence."""

from typing import Any

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.channels.base import Evidence
from tapmachine.units import Units
from tapmachine.units.checks import check_tensor


def is_nan(y: Tensor) -> Tensor:  # bool
    """What was not observed."""
    return torch.isnan(y) if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool)


def check_parameter(channel: str, name: str, value: Any, low: float, high: float) -> None:
    """Raises a ValueError unless a parameter is a number of the interval, or None."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high
    ):
        raise ValueError(f"{channel}: {name} is {value!r}; it must lie in [{low:g}, {high:g}]")


def numbers_only(units: Units, name: str) -> None:
    """Raises a ValueError if states are vectors."""
    if len(units.state_shape) > 1:
        raise ValueError(f"{name}: {type(units).__name__} units have no numbers for states")


def state_count(units: Units, name: str) -> int:
    """How many states each of the units has, if a flip of them is a tilt."""
    counts = units.n_states()
    if counts is None or (len(units.state_shape) == 1 and set(counts) != {2}):
        raise ValueError(
            f"{name}: {type(units).__name__} units do not have two states; use GaussianNoise, or CustomNoise"
        )
    return counts[0]


def two_states(units: Units) -> tuple[float, float]:
    """The lower and the upper one."""
    low, high = units.decode(torch.tensor([[0], [1]], device=units.device).expand(2, units.n))[:, 0].tolist()
    return (low, high) if low < high else (high, low)


def _check_shape(y: Any, units: Units) -> None:
    y = check_tensor(y, "y")
    if y.dim() != 2 or y.shape[1] != units.n or len(y) == 0:
        raise ValueError(f"y has shape {tuple(y.shape)}; it must be (K, {units.n}), K ≥ 1")


def check_numbers(y: Tensor, units: Units) -> Tensor:
    """Which values were observed; they must be finite."""
    _check_shape(y, units)
    units.reject(torch.isinf(y), y, "y", "it must be finite, or NaN if it was not observed")
    return ~is_nan(y).to(units.device)


def check_alphabet(y: Tensor, units: Units) -> Tensor:
    """Which values were observed; they must be states of the units."""
    seen = check_numbers(y, units)
    as_states(y, seen, units, validate=True)
    return seen


def as_states(y: Tensor, seen: Tensor, units: Units, validate: bool = False) -> Tensor:  # (K, *state_shape)
    """Observations as states of the units; some state where there is none."""
    y = y.to(units.device)
    if len(units.state_shape) > 1:
        numbers = torch.where(seen, y, 0)
        if validate:
            q = units.state_shape[1]
            wrong = (numbers != numbers.round()) | (numbers < 0) | (numbers >= q)
            units.reject(wrong, numbers, "y", f"it must be the number of a state, 0 to {q - 1}, or NaN")
        return units.check_states(numbers.long(), validate=False)
    somewhere = units.sample(
        Tilt(torch.zeros(units.n, dtype=units.dtype, device=units.device), 0.0),
        torch.Generator(units.device).manual_seed(0),
    )
    try:
        return units.check_states(torch.where(seen, y.to(units.dtype), somewhere), validate=validate)
    except ValueError as error:
        raise ValueError(str(error).replace(": x[", ": y[", 1)) from None


def told_states(states: Tensor, known: Tensor, scale: Tensor) -> Evidence:
    """Evidence that is the states of some units."""
    nothing = torch.zeros_like(states)
    return Evidence(nothing, nothing, known, states, scale.sum(-1))


def tilting(field: Tensor, precision: Tensor, states: Tensor, scale: Tensor) -> Evidence:
    """Evidence that is a tilt."""
    known = torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    return Evidence(field, precision, known, states, scale.double().sum(-1))
