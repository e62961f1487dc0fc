"""Machines on disk: safetensors with a description, checked by a digest, written so that a crash costs nothing.

Reading a file builds unit types of this package, or those that the caller passes, and fills in numbers; nothing in the
file is ever executed.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapmachine.data.errors import FileError
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.user_units import check_reconstruction, constructor_arguments, reconstruct
from tapmachine.units import Custom, Mixed, Units
from tapmachine.units.conditioned import Conditioned
from tapmachine.units.registry import UNIT_TYPES, UnitType, word_for

FORMAT = 1
MACHINE_FILE = "machine.safetensors"  # in a run folder
KEY = "tapmachine"  # of the entry in the file's header

Description = dict[str, Any]  # what JSON can hold


def save(machine: BoltzmannMachine, path: str | Path, data: Description | None = None) -> None:
    """Save a machine to a file: unit types, shapes, dtype and all parameters.

    The file appears as a whole or not at all: it is written beside its place, flushed to disk, and moved there.

    Args:
        machine: of any unit types but `Custom`, whose function a file cannot hold; not conditioned. Of a fitted `RBM`
            its `machine_` is saved. A unit type of your own can be saved if its parameters, its buffers and the
            arguments of its constructor, each kept in an attribute of the same name, are all it takes to make it again.
        path: of the file; `.safetensors` by custom.
        data: what is worth knowing of the data, which `load` hands back: anything that JSON can hold.

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
        raise FileError(f"machine is a {type(machine).__name__}; expected a machine or a fitted RBM{hint}")
    tensors, description = describe(machine)
    write_tensors(path, tensors, description | {"kind": "machine", "data": data or {}})


def load(
    path: str | Path,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    unit_types: Sequence[type[Units]] = (),
) -> BoltzmannMachine:
    """Load a machine from a file that `save` wrote, or from a run folder.

    Args:
        path: The file; or the folder of a run, for its machine at the last checkpoint.
        device: Device to put the machine on. Default: the CPU.
        dtype: Type of the parameters. Default: as saved.
        unit_types: Classes of your own that the machine's units may have, such as `[Counts]`.

    Raises:
        FileError: If there is no machine, or it is damaged or was written by a newer version.
    """
    path = machine_file(path)
    tensors, description = read_tensors(path, "machine")
    return rebuild(path, tensors, description, unit_types).to(device=device, dtype=dtype)


def data_description(path: str | Path) -> Description:
    """The description of the data that was given to `save`, or that a run has saved with its machine.

    Args:
        path: As for `load`.
    """
    description: Description = read_tensors(machine_file(path), "machine")[1].get("data", {})
    return description


def machine_file(path: str | Path) -> Path:
    """The file itself, or that of a run folder."""
    path = Path(path)
    if path.is_dir() and not (path / MACHINE_FILE).exists():
        raise FileError(f"{path}: is a folder without {MACHINE_FILE}; expected the file of a machine, or a run folder")
    return path / MACHINE_FILE if path.is_dir() else path


# ----- a machine as tensors and a description


def describe(machine: BoltzmannMachine) -> tuple[dict[str, Tensor], Description]:
    """All parameters, and what it takes to make a machine that they fit."""
    layers = [_described(units, layer_index) for layer_index, units in enumerate(machine.layers)]
    tensors = {name: value.detach().cpu().contiguous() for name, value in machine.state_dict().items()}
    description: Description = {"layers": layers, "dtype": str(machine.dtype).removeprefix("torch.")}
    rate = machine.last_learning_rate
    return tensors, description | ({} if rate is None else {"last_learning_rate": rate})


def _described(units: Units, layer_index: int) -> Description:
    """What it takes, beside tensors, to make the units of a layer again."""
    name = type(units).__name__
    if isinstance(units, Mixed):
        blocks = [_described(block, layer_index) for block in units.blocks]  # type: ignore[arg-type]
        return {"type": name, "n": units.n, "blocks": blocks}
    word = word_for(units)
    if word is not None:
        states = UNIT_TYPES[word].states
        return {"type": name, "n": units.n} | ({} if states is None else {"q": getattr(units, states)})
    try:
        if isinstance(units, Custom | Conditioned):
            raise FileError("a file holds numbers, not functions or evidence")
        arguments = constructor_arguments(units)
        check_reconstruction(units, arguments)
    except FileError as error:
        raise FileError(f"layer {layer_index}: {name} units cannot be saved; {error}") from None
    return {"type": name, "n": units.n, "arguments": arguments}


def rebuild(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    description: Description,
    unit_types: Sequence[type[Units]] = (),
) -> BoltzmannMachine:
    """The machine that `describe` was given."""
    classes = {unit_type.__name__: unit_type for unit_type in unit_types}
    try:
        layers = [
            _rebuilt(layer, _within(tensors, f"layers.{i}."), tensors, classes)
            for i, layer in enumerate(description["layers"])
        ]
        n_edges = max(1, len(layers) - 1)
        weights = [tensors[f"weights.{edge}"] for edge in range(n_edges)]
        machine = BoltzmannMachine([units.to(weights[0].dtype) for units in layers], weights)
        machine.load_state_dict(dict(tensors))
        machine.last_learning_rate = description.get("last_learning_rate")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"{path}: what is in the file does not make a machine: {reason}") from None
    return machine


def _rebuilt(
    layer: Description,
    of_layer: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    classes: Mapping[str, type[Units]],
) -> Units:
    """The units of a layer or block, whose parameters are still to be filled in."""
    if "blocks" in layer:
        blocks = enumerate(layer["blocks"])
        return Mixed([_rebuilt(block, _within(of_layer, f"blocks.{i}."), tensors, classes) for i, block in blocks])
    return _users_layer(layer, of_layer, tensors, classes) if "arguments" in layer else _layer(layer, of_layer)


def _within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _users_layer(
    layer: Description,
    of_layer: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    classes: Mapping[str, type[Units]],
) -> Units:
    """The units of a type that is not of this package."""
    name, n = layer["type"], layer["n"]
    if name not in classes:
        raise FileError(f"{name} units are not part of tapmachine; pass their class: load(path, unit_types=[{name}])")
    if not isinstance(n, int) or n > sum(z.numel() for z in tensors.values()):
        raise FileError(f"no parameter has the size {n!r} of its layer")
    return reconstruct(classes[name], n, layer["arguments"], of_layer)


def _layer(description: Description, parameters: Mapping[str, Tensor]) -> Units:
    unit_type = _unit_types().get(description["type"])
    if unit_type is None:
        raise FileError(f"unit type {description['type']!r} is not known to this version")
    # A size that the tensors do not bear out must not be allocated.
    n = description["n"]
    if not isinstance(n, int) or not any(z.dim() and z.shape[0] == n for z in parameters.values()):
        raise FileError(f"no parameter has the size {n!r} of its layer")
    q = description["q"] if unit_type.states is not None else 1
    if not isinstance(q, int) or n * q > sum(z.numel() for z in parameters.values()):
        raise FileError(f"no parameter has {q!r} states for each unit")
    lower, upper = (None, None) if unit_type.bounds is None else (parameters[name] for name in unit_type.bounds)
    return unit_type.make(n, q, (lower, upper))


def _unit_types() -> dict[str, UnitType]:
    """Those that a file can hold, by the names of their classes."""
    return {unit_type.load().__name__: unit_type for unit_type in UNIT_TYPES.values()}


# ----- tensors and a description as a file


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], description: Description) -> None:
    """Writes tensors with a description, and a digest of both."""
    from safetensors.torch import save as to_bytes  # here, so that importing the package stays quick

    try:
        text = json.dumps({"format": FORMAT, **description}, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: the description cannot be written as JSON: {error}") from None
    # One entry only: the order of several would differ from time to time, and with it the file.
    header = {KEY: json.dumps({"description": text, "sha256": _digest(tensors, text)})}
    write_atomically(path, to_bytes(dict(tensors), header))


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], Description]:
    """What `write_tensors` wrote, if nothing has changed since."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise FileError(f"{path}: is a folder, not a file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file") from None
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise FileError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if KEY not in header:
        raise FileError(f"{path}: was not written by tapmachine")
    try:
        entry = json.loads(header[KEY])
        text, digest = str(entry["description"]), entry["sha256"]
        if digest != _digest(tensors, text):
            raise ValueError
        description: Description = json.loads(text)
    except (ValueError, RecursionError, TypeError, KeyError):
        raise FileError(f"{path}: is damaged: its content does not match its digest") from None
    if description.get("format") != FORMAT:
        raise FileError(
            f"{path}: has format {description.get('format')!r}; this version reads {FORMAT}; another one wrote it"
        )
    if description.get("kind") != kind:
        raise FileError(f"{path}: holds a {description.get('kind')!r}, not a {kind!r}")
    return tensors, description


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def write_atomically(path: str | Path, content: bytes) -> None:
    """Writes a file beside its place, flushes it to disk and moves it there: others see the old or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Makes what was moved into a folder, or out of it, last."""
    with suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
