"""Validation of observations and their conversion to evidence."""

from typing import Any

import torch
from torch import Tensor

from tapmachine.data.checks import check_tensor
from tapmachine.posterior.channels.base import Evidence
from tapmachine.units import Units


def is_nan(y: Tensor) -> Tensor:  # bool
    """Return a mask of the values that were not observed (NaN)."""
    return torch.isnan(y) if y.is_floating_point() else torch.zeros_like(y, dtype=torch.bool)


def check_parameter(channel: str, name: str, value: Any, low: float, high: float) -> None:
    """Raise a ValueError if a parameter is neither None nor a number in [low, high]."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high
    ):
        raise ValueError(f"{channel}: {name} is {value!r}; expected a number in [{low:g}, {high:g}]")


def have_numbers(units: Units) -> bool:
    """Return whether the states of the units are numbers, as opposed to one-hot vectors."""
    return len(units.state_shape) == 1


def numbers_only(units: Units, name: str) -> None:
    """Raise a ValueError if the states of the units are vectors."""
    if not have_numbers(units):
        raise ValueError(f"{name}: expected units with numeric states, got {type(units).__name__} units")


def has_two_states_or_categories(units: Units) -> bool:
    """Return whether each unit has two numeric states, or each unit is categorical."""
    return units.n_states() is not None and (not have_numbers(units) or set(units.n_states() or ()) == {2})


def state_count(units: Units, name: str) -> int:
    """Return the number of states of each unit.

    Raises:
        ValueError: If the units are neither two-state nor categorical units.
    """
    if not has_two_states_or_categories(units):
        raise ValueError(
            f"{name}: expected units with two states or categorical units, got {type(units).__name__} units; use "
            "GaussianNoise or CustomNoise"
        )
    return (units.n_states() or [0])[0]


def two_states(units: Units) -> tuple[float, float]:
    """Return the lower and the upper state of two-state units."""
    low, high = units.decode(torch.tensor([[0], [1]], device=units.device).expand(2, units.n))[:, 0].tolist()
    return (low, high) if low < high else (high, low)


def _check_shape(y: Any, units: Units) -> None:
    y = check_tensor(y, "y")
    if y.dim() != 2 or y.shape[1] != units.n or len(y) == 0:
        raise ValueError(f"y has shape {tuple(y.shape)}; expected (K, {units.n}), K ≥ 1")


def check_numbers(y: Tensor, units: Units) -> Tensor:
    """Check that the observed values are finite; return a mask of the observed values, of shape (K, n)."""
    _check_shape(y, units)
    units.reject(torch.isinf(y), y, "y", "expected a finite number, or NaN if it was not observed")
    return ~is_nan(y).to(units.device)


def check_alphabet(y: Tensor, units: Units) -> Tensor:
    """Check that the observed values are states of the units; return a mask of the observed values, (K, n).

    Example:
        >>> import torch
        >>> from tapmachine import Binary
        >>> from tapmachine.channels import check_alphabet
        >>> check_alphabet(torch.tensor([[1.0, torch.nan]]), Binary(2))
        tensor([[ True, False]])
    """
    seen = check_numbers(y, units)
    completed_states(y, seen, units, validate=True)
    return seen


def completed_states(y: Tensor, seen: Tensor, units: Units, validate: bool = False) -> Tensor:  # (K, *state_shape)
    """Convert observations to states of the units, with an arbitrary state for missing values."""
    y = y.to(units.device)
    if not have_numbers(units):
        numbers = torch.where(seen, y, 0)
        if validate:
            q = units.state_shape[1]
            wrong = (numbers != numbers.round()) | (numbers < 0) | (numbers >= q)
            units.reject(wrong, numbers, "y", f"expected a state index from 0 to {q - 1}, or NaN")
        return units.check_states(numbers.long(), validate=False)
    if validate:
        for start, n, q in units.categorical_blocks:  # in a mixed layer
            in_part = seen[:, start : start + n * q].unflatten(-1, (n, q))
            wrong = (in_part.any(-1) & ~in_part.all(-1)).repeat_interleave(q, -1)
            wrong = torch.nn.functional.pad(wrong, (start, units.n - start - n * q)) & ~seen
            units.reject(wrong, y, "y", "expected NaN in all components of a missing categorical unit")
    try:
        return units.check_states(torch.where(seen, y.to(units.dtype), units.any_state()), validate=validate)
    except ValueError as error:
        raise ValueError(str(error).replace(": x[", ": y[", 1)) from None


def state_evidence(states: Tensor, known: Tensor, scale: Tensor) -> Evidence:
    """Create evidence that fixes the states of the known units.

    Args:
        states: States, of shape (K, *state_shape); arbitrary for units that are not known.
        known: Mask of the known units, of shape (K, n).
        scale: Logarithm of P(y|x) for each unit, of shape (K, n).

    Example:
        >>> import torch
        >>> from tapmachine.channels import state_evidence
        >>> y = torch.tensor([[1.0, 0.0]])
        >>> state_evidence(y, known=torch.tensor([[True, False]]), scale=torch.zeros(1, 2)).known
        tensor([[ True, False]])
    """
    nothing = torch.zeros_like(states)
    return Evidence(nothing, nothing, known, states, scale.sum(-1))


def tilt_evidence(field: Tensor, precision: Tensor, states: Tensor, scale: Tensor) -> Evidence:
    """Create evidence from the tilt P(y|x) = exp(Dx − ½Ex² + scale).

    Args:
        field: Field D, of shape (K, *state_shape).
        precision: Precision E, of shape (K, *state_shape).
        states: Arbitrary states, of shape (K, *state_shape); only their shape is used.
        scale: Term of ln P(y|x) that does not depend on x, of shape (K, n).

    Example:
        >>> import torch
        >>> from tapmachine.channels import tilt_evidence
        >>> y = torch.ones(1, 2)
        >>> tilt_evidence(field=4 * y, precision=4 * y, states=y, scale=-2 * y**2).field
        tensor([[4., 4.]])
    """
    known = torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    return Evidence(field, precision, known, states, scale.double().sum(-1))
