"""Conversion of observations to evidence: observed values, their states, and their tilts."""

from typing import Any

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_tensor
from tapmachine.posterior.channels.base import Evidence
from tapmachine.units import Units


def is_nan(y: Tensor) -> Tensor:  # bool
    """True where a value was not observed."""
    return torch.isnan(y) if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool)


def check_parameter(channel: str, name: str, value: Any, low: float, high: float) -> None:
    """Raise a ValueError unless a parameter is None or a number in [low, high]."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high
    ):
        raise ValueError(f"{channel}: {name} is {value!r}; it must lie in [{low:g}, {high:g}]")


def numbers_only(units: Units, name: str) -> None:
    """Raise a ValueError if the states of the units are vectors."""
    if units.is_categorical:
        raise ValueError(f"{name}: the states of {type(units).__name__} units are not numbers")


def state_count(units: Units, name: str) -> int:
    """Number of states of each unit; raises a ValueError if units have neither two nor q states."""
    counts = units.n_states()  # 1 for a clamped unit
    if counts is None or (not units.is_categorical and set(counts) != {2}):
        raise ValueError(
            f"{name}: {type(units).__name__} units do not have two states; use GaussianNoise, or CustomNoise"
        )
    return counts[0]


def two_states(units: Units) -> tuple[float, float]:
    """Lower and upper state of two-state units."""
    low, high = units.decode(torch.tensor([[0], [1]], device=units.device).expand(2, units.n))[:, 0].tolist()
    return (low, high) if low < high else (high, low)


def _check_shape(y: Any, units: Units) -> None:
    y = check_tensor(y, "y")
    if y.dim() != 2 or y.shape[1] != units.n or len(y) == 0:
        raise ValueError(f"y has shape {tuple(y.shape)}; expected (K, {units.n}), K ≥ 1")


def check_numbers(y: Tensor, units: Units) -> Tensor:
    """Check that the observed values are finite. Returns a mask of them, (K, n), False for NaN."""
    _check_shape(y, units)
    units.reject(torch.isinf(y), y, "y", "it must be finite, or NaN if it was not observed")
    return ~is_nan(y).to(units.device)


def check_alphabet(y: Tensor, units: Units) -> Tensor:
    """Check that the observed values are states of the units. Returns a mask of them, (K, n), False for NaN."""
    seen = check_numbers(y, units)
    as_states(y, seen, units, validate=True)
    return seen


def as_states(y: Tensor, seen: Tensor, units: Units, validate: bool = False) -> Tensor:  # (K, *state_shape)
    """Observations as states of the units; an arbitrary state where nothing was observed."""
    y = y.to(units.device)
    if units.is_categorical:
        numbers = torch.where(seen, y, 0)
        if validate:
            q = units.state_shape[1]
            wrong = (numbers != numbers.round()) | (numbers < 0) | (numbers >= q)
            units.reject(wrong, numbers, "y", f"it must be a state index, 0 to {q - 1}, or NaN")
        return units.check_states(numbers.long(), validate=False)
    if validate:
        for start, n, q in units.categorical_blocks:  # of a mixed layer
            in_part = seen[:, start : start + n * q].unflatten(-1, (n, q))
            wrong = (in_part.any(-1) & ~in_part.all(-1)).repeat_interleave(q, -1)
            wrong = torch.nn.functional.pad(wrong, (start, units.n - start - n * q)) & ~seen
            units.reject(wrong, y, "y", "a missing categorical unit must have NaN in all of its components")
    somewhere = units.sample(
        Tilt(torch.zeros(units.n, dtype=units.dtype, device=units.device), 0.0),
        torch.Generator(units.device).manual_seed(0),
    )
    try:
        return units.check_states(torch.where(seen, y.to(units.dtype), somewhere), validate=validate)
    except ValueError as error:
        raise ValueError(str(error).replace(": x[", ": y[", 1)) from None


def state_evidence(states: Tensor, known: Tensor, scale: Tensor) -> Evidence:
    """Evidence that fixes the states of the known units.

    Args:
        states: States, (K, *state_shape); arbitrary where not known.
        known: Mask of the known units, (K, n).
        scale: ln P(y|x) of each unit, (K, n).
    """
    nothing = torch.zeros_like(states)
    return Evidence(nothing, nothing, known, states, scale.sum(-1))


def tilt_evidence(field: Tensor, precision: Tensor, states: Tensor, scale: Tensor) -> Evidence:
    """Evidence that is a tilt, P(y|x) = exp(Dx − ½Ex² + scale).

    Args:
        field: D, (K, *state_shape).
        precision: E, same shape.
        states: Any states, (K, *state_shape); only their shape is used.
        scale: Term of ln P(y|x) that does not depend on x, (K, n).
    """
    known = torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    return Evidence(field, precision, known, states, scale.double().sum(-1))
