"""Training state as a checkpoint stores it: named tensors, and JSON-serializable values."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TrainingState(NamedTuple):
    """The complete state of a training, from which it can be resumed.

    Attributes:
        tensors: Parameters, momenta, chains, and the states of random number generators, by name.
        values: The rest, JSON-serializable.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def take_tensors(nested: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move each tensor of nested dictionaries and lists to `tensors`, and replace it by its name there, for JSON."""
    if isinstance(nested, Tensor):
        tensors[name] = nested
        return {"tensor": name}
    if isinstance(nested, dict):
        return {str(key): take_tensors(value, f"{name}.{key}", tensors) for key, value in nested.items()}
    if isinstance(nested, list | tuple):
        return [take_tensors(value, f"{name}.{index}", tensors) for index, value in enumerate(nested)]
    return nested


def put_tensors(nested: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """Inverse of `take_tensors`. Optimizers number their parameters, and JSON turns these numbers into strings."""
    if isinstance(nested, dict):
        if nested.keys() == {"tensor"}:
            return tensors[nested["tensor"]].clone().to(device)
        items = ((int(key) if key.isdigit() else key, value) for key, value in nested.items())
        return {key: put_tensors(value, tensors, device) for key, value in items}
    if isinstance(nested, list):
        return [put_tensors(value, tensors, device) for value in nested]
    return nested


def tensors_under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names start with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): z for name, z in tensors.items() if name.startswith(prefix)}
