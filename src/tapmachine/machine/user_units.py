"""Units of a user's type, taken apart into constructor arguments and tensors, and made again from these."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from tapmachine.data.errors import FileError
from tapmachine.units import Units

PLAIN = (bool, int, float, str, type(None))  # what JSON gives back as it was

Arguments = dict[str, Any]


def constructor_arguments(units: Units) -> Arguments:
    """The arguments of the units' constructor, beside `n` and tensors, from attributes of the same names.

    Raises:
        FileError: If one is neither a number, a string, None nor a tensor, or is not kept under its name.
    """
    arguments: Arguments = {}
    for parameter in _parameters(type(units)):
        name = parameter.name
        value = getattr(units, name, parameter.default)
        if isinstance(value, Tensor) or value is parameter.default is not Parameter.empty:
            continue  # filled in, or left out, when the units are made again
        if value is Parameter.empty:
            raise FileError(
                f"its constructor needs {name!r}, which is not an attribute; keep it as self.{name} or in a buffer"
            )
        if not isinstance(value, PLAIN):
            raise FileError(f"its argument {name!r} is a {type(value).__name__}; a file holds numbers and strings only")
        arguments[name] = value
    return arguments


def reconstruct(unit_type: type[Units], n: int, arguments: Arguments, tensors: Mapping[str, Tensor]) -> Units:
    """New units; their parameters are to be filled in by `load_state_dict`."""
    needed = [p.name for p in _parameters(unit_type) if p.default is Parameter.empty and p.name in tensors]
    return unit_type(n, **{name: tensors[name] for name in needed} | arguments)


def check_reconstruction(units: Units, arguments: Arguments) -> None:
    """Raises a FileError if units that are made again would not be the same."""
    tensors = units.state_dict()
    try:
        copy = reconstruct(type(units), units.n, arguments, tensors).to(units.device, units.dtype)
        copy.load_state_dict(tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"its constructor fails: {str(error).splitlines()[0]}") from None
    for name, value in vars(units).items():
        if name.startswith("_") or name == "training" or not isinstance(value, PLAIN):
            continue
        restored = getattr(copy, name, None)
        if restored != value:
            raise FileError(
                f"its attribute {name!r} is {value!r}, but would be {restored!r} when loaded; make it an argument of "
                "the constructor under the same name, or a buffer"
            )


def _parameters(unit_type: type[Units]) -> list[Parameter]:
    """The arguments of a constructor that have names, but for `n`."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [p for p in signature(unit_type).parameters.values() if p.kind in named and p.name != "n"]
