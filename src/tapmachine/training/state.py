"""The state of a training, as a checkpoint can hold it: tensors by name, and what JSON can say."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TrainingState(NamedTuple):
    """All that the rest of a training depends on.

    Attributes:
        tensors: parameters, momenta, chains, and the states of random number generators, by name.
        values: the rest, as JSON can hold it.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def take_tensors(given: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Nested dictionaries and lists with their tensors put aside under a name, so that JSON can hold them."""
    if isinstance(given, Tensor):
        tensors[name] = given
        return {"tensor": name}
    if isinstance(given, dict):
        return {str(key): take_tensors(value, f"{name}.{key}", tensors) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [take_tensors(value, f"{name}.{number}", tensors) for number, value in enumerate(given)]
    return given


def put_tensors(given: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The reverse; torch counts parameters by numbers, which JSON has as strings."""
    if isinstance(given, dict):
        if given.keys() == {"tensor"}:
            return tensors[given["tensor"]].clone().to(device)
        items = ((int(key) if key.isdigit() else key, value) for key, value in given.items())
        return {key: put_tensors(value, tensors, device) for key, value in items}
    if isinstance(given, list):
        return [put_tensors(value, tensors, device) for value in given]
    return given
