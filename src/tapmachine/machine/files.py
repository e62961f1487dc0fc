"""Machine files in the safetensors format, with a description and a digest.

Files are written atomically. Loading a file never executes code from the file: it only constructs unit types of this
package, or unit types that the caller passes, and sets their parameters.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapmachine.data.errors import FileError
from tapmachine.data.files import check_regular, leads_out, write_atomically
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.checks import check_machine
from tapmachine.units import Custom, Mixed, Units
from tapmachine.units.conditioned import Conditioned
from tapmachine.units.registry import UNIT_TYPES, word_for

FORMAT = 1
MACHINE_FILE = "machine.safetensors"  # name of the machine file in a run directory
KEY = "tapmachine"  # key of the description in the header of a file
PLAIN = (bool, int, float, str, type(None))  # unchanged by a JSON round trip

Description = dict[str, Any]  # JSON-serializable


def save(machine: BoltzmannMachine, path: str | Path, data: Description | None = None) -> None:
    """Save a machine with its unit types, shapes, dtype and parameters to a file.

    The file is written atomically: a temporary file is flushed to disk and renamed.

    Args:
        machine: An unconditioned machine, or a fitted `RBM`, whose attribute `machine_` is saved. `Custom` units cannot
            be saved, because their prior is a Python function. User-defined unit types can be saved if they can be
            reconstructed from their parameters, buffers and constructor arguments. Constructor arguments must be stored
            in attributes with the same names.
        path: Path to the file, conventionally with the suffix `.safetensors`.
        data: JSON-serializable description of the data; `data_description` reads it from the file.

    Raises:
        FileError: If the machine cannot be saved.

    Example:
        >>> import tempfile
        >>> from tapmachine import Binary, load, rbm, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(rbm(Binary(4), Binary(2)), f"{folder}/machine.safetensors")
        ...     load(f"{folder}/machine.safetensors").sizes
        (4, 2)
    """
    machine = getattr(machine, "machine_", machine)
    if not isinstance(machine, BoltzmannMachine):
        hint = "; fit it first" if hasattr(machine, "fit") else ""
        raise FileError(f"machine is a {type(machine).__name__}; expected a BoltzmannMachine or a fitted RBM{hint}")
    tensors, description = describe(machine)
    write_tensors(path, tensors, description | {"kind": "machine", "data": data or {}})


def load(
    path: str | Path,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    unit_types: Sequence[type[Units]] = (),
) -> BoltzmannMachine:
    """Load a machine from a file written by `save`, or from a run directory.

    Args:
        path: Path of a machine file, or of a run directory, whose last checkpoint is loaded.
        device: Device of the machine (default: the CPU).
        dtype: Data type of the parameters (default: the saved dtype).
        unit_types: User-defined unit types that the machine may contain, such as `[Counts]`.

    Raises:
        FileError: If the file is not found or damaged, or if it was written by a newer version.

    Example:
        >>> import tempfile
        >>> from tapmachine import Binary, load, rbm, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(rbm(Binary(4), Binary(2)), f"{folder}/machine.safetensors")
        ...     load(f"{folder}/machine.safetensors", dtype=torch.float64).dtype
        torch.float64
    """
    path = machine_file(path)
    tensors, description = read_tensors(path, "machine")
    return rebuild(path, tensors, description, unit_types).to(device=device, dtype=dtype)


def data_description(path: str | Path) -> Description:
    """Return the description of the data that was passed to `save` or stored by a training run.

    Args:
        path: Path of a machine file or of a run directory.
    """
    description: Description = read_tensors(machine_file(path), "machine")[1].get("data", {})
    return description


def machine_file(path: str | Path) -> Path:
    """Return the path of a machine file, or of the machine file in a run directory."""
    path = Path(path)
    if not path.is_dir():
        return path
    machine = path / MACHINE_FILE
    if not machine.exists():
        raise FileError(
            f"{path}: {MACHINE_FILE} not found in this directory; expected a machine file or a run directory"
        )
    if leads_out(machine, path):
        raise FileError(f"{machine}: the link leads out of the run directory; replace it with a copy")
    return machine


# ----- machines as tensors with a description


def describe(machine: BoltzmannMachine) -> tuple[dict[str, Tensor], Description]:
    """Return the tensors and a description of a machine, from which `rebuild` reconstructs the machine."""
    layers = [_described(units, layer_index) for layer_index, units in enumerate(machine.layers)]
    tensors = {name: value.detach().cpu().contiguous() for name, value in machine.state_dict().items()}
    description: Description = {"layers": layers, "dtype": str(machine.dtype).removeprefix("torch.")}
    rate = machine.last_learning_rate
    return tensors, description | ({} if rate is None else {"last_learning_rate": rate})


def _described(units: Units, layer_index: int) -> Description:
    """Return a JSON-serializable description of a layer's units, without their tensors."""
    name = type(units).__name__
    if isinstance(units, Mixed):
        blocks = [_described(block, layer_index) for block in units.blocks]  # type: ignore[arg-type]
        return {"type": name, "n": units.n, "blocks": blocks}
    word = word_for(units)
    if word is not None:
        states = UNIT_TYPES[word].states
        return {"type": name, "n": units.n} | ({} if states is None else {"q": getattr(units, states)})

    try:
        return {"type": name, "n": units.n, "arguments": _arguments_of(units)}
    except FileError as error:
        raise FileError(f"layer {layer_index}: {name} units cannot be saved; {error}") from None


def rebuild(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    description: Description,
    unit_types: Sequence[type[Units]] = (),
) -> BoltzmannMachine:
    """Reconstruct a machine from the tensors and the description returned by `describe`."""
    classes = {unit_type.__name__: unit_type for unit_type in unit_types}
    try:
        layers = [
            _rebuilt(layer, tensors, f"layers.{layer_index}.", classes)
            for layer_index, layer in enumerate(description["layers"])
        ]
        n_edges = max(1, len(layers) - 1)
        weights = [tensors[f"weights.{edge}"] for edge in range(n_edges)]
        if any(z.is_complex() for z in tensors.values()):
            raise FileError("the parameters are complex; expected real numbers")
        machine = BoltzmannMachine([units.to(weights[0].dtype) for units in layers], weights)
        machine.load_state_dict(dict(tensors))
        rate = description.get("last_learning_rate")
        machine.last_learning_rate = None if rate is None else float(rate)
        check_machine(machine)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FileError(f"{path}: not a valid machine file: {reason}") from None
    return machine


def _rebuilt(
    layer: Description, tensors: Mapping[str, Tensor], prefix: str, classes: Mapping[str, type[Units]]
) -> Units:
    """Construct the units of a layer or block, whose tensors have names with a prefix and are loaded later."""
    if "blocks" in layer:
        blocks = enumerate(layer["blocks"])
        return Mixed([_rebuilt(block, tensors, f"{prefix}blocks.{i}.", classes) for i, block in blocks])
    name, n, q = layer["type"], layer["n"], layer.get("q", 1)
    # Check the size against the tensors before allocating memory.
    if not isinstance(n, int) or not isinstance(q, int) or n * q > sum(z.numel() for z in tensors.values()):
        raise FileError(f"a layer has {n!r} units with {q!r} states, but no parameter of this size")
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    if "arguments" in layer:
        if name not in classes:
            raise FileError(f"{name} is a user-defined unit type; pass its class with load(path, unit_types=[{name}])")
        return _reconstructed(classes[name], n, layer["arguments"], own)
    unit_type = next((known for known in UNIT_TYPES.values() if known.load().__name__ == name), None)
    if unit_type is None:
        raise FileError(f"unknown unit type {name!r}; the file may have been written by a newer version")
    lower, upper = (None, None) if unit_type.bounds is None else (own[bound] for bound in unit_type.bounds)
    return unit_type.make(n, q, (lower, upper))


# ----- user-defined unit types


def _arguments_of(units: Units) -> Description:
    """Return the constructor arguments of units, except `n` and tensors, read from attributes of the same names.

    Raises:
        FileError: If the units cannot be reconstructed from these arguments and their tensors.
    """
    if isinstance(units, Custom | Conditioned):
        raise FileError("functions and evidence cannot be stored in a file")
    arguments: Description = {}
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
    tensors = units.state_dict()
    try:
        copy = _reconstructed(type(units), units.n, arguments, tensors).to(units.device, units.dtype)
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
    return arguments


def _reconstructed(unit_type: type[Units], n: int, arguments: Description, tensors: Mapping[str, Tensor]) -> Units:
    """Create units from constructor arguments; their tensors are loaded later."""
    needed = [p.name for p in _parameters(unit_type) if p.default is Parameter.empty and p.name in tensors]
    return unit_type(n, **{name: tensors[name] for name in needed} | arguments)


def _parameters(unit_type: type[Units]) -> list[Parameter]:
    """Return the named parameters of a constructor, except `n`."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [p for p in signature(unit_type).parameters.values() if p.kind in named and p.name != "n"]


# ----- tensors with a description as a file


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], description: Description) -> None:
    """Write tensors, a JSON-serializable description and a digest of both to a file."""
    from safetensors.torch import save as to_bytes  # imported here to keep the import of the package fast

    try:
        text = json.dumps({"format": FORMAT, **description}, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: the description is not JSON-serializable: {error}") from None
    # A single entry keeps files reproducible; the order of several entries would vary between runs.
    header = {KEY: json.dumps({"description": text, "sha256": _digest(tensors, text)})}
    write_atomically(path, to_bytes(dict(tensors), header))


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], Description]:
    """Read the tensors and the description of a file written by `write_tensors`, and verify its digest."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileError(f"{path}: file not found") from None
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise FileError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if KEY not in header:
        raise FileError(f"{path}: not a tapmachine file")
    try:
        entry = json.loads(header[KEY])
        text, digest = str(entry["description"]), entry["sha256"]
        if digest != _digest(tensors, text):
            raise ValueError
        description: Description = json.loads(text)
        if not isinstance(description, dict) or not isinstance(description.get("data", {}), dict):
            raise TypeError
    except (ValueError, RecursionError, TypeError, KeyError):
        raise FileError(f"{path}: the file is damaged; its content does not match its digest") from None
    if description.get("format") != FORMAT:
        raise FileError(f"{path}: the file has format {description.get('format')!r}; expected format {FORMAT}")
    if description.get("kind") != kind:
        raise FileError(f"{path}: the file contains a {description.get('kind')!r}; expected a {kind!r}")
    return tensors, description


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()
