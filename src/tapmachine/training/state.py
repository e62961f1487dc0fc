"""Training state as stored in a checkpoint: named tensors and JSON-serializable values."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TrainingState(NamedTuple):
    """Complete training state, from which training can be resumed.

    Attributes:
        tensors: Parameters, momenta, chains, and states of random number generators, by name.
        values: All other values, which are JSON-serializable.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def take_tensors(nested: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move all tensors in nested dictionaries and lists to `tensors`, and replace each tensor by its name."""
    if isinstance(nested, Tensor):
        tensors[name] = nested
        return {"tensor": name}
    if isinstance(nested, dict):
        return {str(key): take_tensors(value, f"{name}.{key}", tensors) for key, value in nested.items()}
    if isinstance(nested, list | tuple):
        return [take_tensors(value, f"{name}.{index}", tensors) for index, value in enumerate(nested)]
    return nested


def put_tensors(nested: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """Invert `take_tensors`.

    Numeric keys are converted back to integers, because JSON turns the parameter indices of optimizers into strings.
    """
    if isinstance(nested, dict):
        if nested.keys() == {"tensor"}:
            return tensors[nested["tensor"]].clone().to(device)
        items = ((int(key) if key.isdigit() else key, value) for key, value in nested.items())
        return {key: put_tensors(value, tensors, device) for key, value in items}
    if isinstance(nested, list):
        return [put_tensors(value, tensors, device) for value in nested]
    return nested


def tensors_under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, with the prefix removed from their names."""
    return {name.removeprefix(prefix): z for name, z in tensors.items() if name.startswith(prefix)}
