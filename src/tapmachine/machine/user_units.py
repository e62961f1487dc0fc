"""Saving user-defined unit types, and reconstructing them from constructor arguments and tensors."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from tapmachine.data.errors import FileError
from tapmachine.units import Units

PLAIN = (bool, int, float, str, type(None))  # unchanged by a JSON round trip

Arguments = dict[str, Any]


def constructor_arguments(units: Units) -> Arguments:
    """Return the constructor arguments of units, except `n` and tensors, read from attributes of the same names.

    Raises:
        FileError: If an argument has no attribute of the same name, or is not a number, string, None or tensor.
    """
    arguments: Arguments = {}
    for parameter in _parameters(type(units)):
        name = parameter.name
        value = getattr(units, name, parameter.default)
        if isinstance(value, Tensor) or value is parameter.default is not Parameter.empty:
            continue  # reconstructed from the tensors, or left at its default
        if value is Parameter.empty:
            raise FileError(
                f"the constructor argument {name!r} is not an attribute; store it as self.{name} or in a buffer"
            )
        if not isinstance(value, PLAIN):
            raise FileError(
                f"the constructor argument {name!r} is a {type(value).__name__}; expected a number or a string"
            )
        arguments[name] = value
    return arguments


def reconstruct(unit_type: type[Units], n: int, arguments: Arguments, tensors: Mapping[str, Tensor]) -> Units:
    """Create units from constructor arguments; their tensors are loaded later with `load_state_dict`."""
    needed = [p.name for p in _parameters(unit_type) if p.default is Parameter.empty and p.name in tensors]
    return unit_type(n, **{name: tensors[name] for name in needed} | arguments)


def check_reconstruction(units: Units, arguments: Arguments) -> None:
    """Raise a FileError if units would not be reconstructed correctly from their constructor arguments."""
    tensors = units.state_dict()
    try:
        copy = reconstruct(type(units), units.n, arguments, tensors).to(units.device, units.dtype)
        copy.load_state_dict(tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"the constructor fails on reconstruction: {str(error).splitlines()[0]}") from None
    for name, value in vars(units).items():
        if name.startswith("_") or name == "training" or not isinstance(value, PLAIN):
            continue
        restored = getattr(copy, name, None)
        if restored != value:
            raise FileError(
                f"the attribute {name!r} is {value!r}, but would be {restored!r} after loading; make it a constructor "
                "argument of the same name, or a buffer"
            )


def _parameters(unit_type: type[Units]) -> list[Parameter]:
    """Return the named parameters of a constructor, except `n`."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [p for p in signature(unit_type).parameters.values() if p.kind in named and p.name != "n"]
