"""Machines on disk: safetensors with a description, checked by a digest, written so that a crash costs nothing.

Reading a file builds the unit types of this package and fills in numbers; nothing in it is ever executed.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.units import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Spin,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    Units,
)
from tapmachine.units.conditioned import Conditioned

FORMAT = 1
MACHINE_FILE = "machine.safetensors"  # in a run folder
KEY = "tapmachine"  # of the entry in the file's header

Description = dict[str, Any]  # what JSON can hold


class FileError(ValueError):
    """A file that cannot be read as what it should be, or a machine that a file cannot hold."""


# How to make the units of a layer again, from what is in the file.
_MAKERS: dict[str, Callable[[Description, Mapping[str, Tensor]], Units]] = {
    "Binary": lambda given, own: Binary(given["n"]),
    "Spin": lambda given, own: Spin(given["n"]),
    "Gaussian": lambda given, own: Gaussian(given["n"]),
    "Categorical": lambda given, own: Categorical(given["n"], given["q"]),
    "TruncatedGaussian": lambda given, own: TruncatedGaussian(given["n"], own["lower"], own["upper"]),
    "TruncatedGaussBernoulli": lambda given, own: TruncatedGaussBernoulli(
        given["n"], own["slab.lower"], own["slab.upper"]
    ),
}


def save(machine: BoltzmannMachine, path: str | Path, data: Description | None = None) -> None:
    """Writes a machine to a file: unit types, shapes, dtype and all parameters.

    The file appears as a whole or not at all: it is written beside its place, flushed to disk, and moved there.

    Args:
        machine: of any unit types but `Custom`, whose function a file cannot hold; not conditioned. Of a fitted `RBM`
            its `machine_` is saved.
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
    path: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> BoltzmannMachine:
    """Load a machine from a file that `save` wrote, or from a run folder.

    Args:
        path: The file; or the folder of a run, for its machine at the last checkpoint.
        device: Device to put the machine on. Default: the CPU.
        dtype: Type of the parameters. Default: as saved.

    Raises:
        FileError: If there is no machine, or it is damaged or was written by a newer version.
    """
    path = machine_file(path)
    tensors, description = read_tensors(path, "machine")
    return rebuild(path, tensors, description).to(device=device, dtype=dtype)


def data_description(path: str | Path) -> Description:
    """The description of the data that was given to `save`, or that a run has saved with its machine.

    Args:
        path: As for `load`.
    """
    found: Description = read_tensors(machine_file(path), "machine")[1].get("data", {})
    return found


def machine_file(path: str | Path) -> Path:
    """The file itself, or that of a run folder."""
    path = Path(path)
    if path.is_dir() and not (path / MACHINE_FILE).exists():
        raise FileError(f"{path}: is a folder without {MACHINE_FILE}; expected the file of a machine, or a run folder")
    return path / MACHINE_FILE if path.is_dir() else path


# ----- a machine as tensors and a description


def describe(machine: BoltzmannMachine) -> tuple[dict[str, Tensor], Description]:
    """All parameters, and what it takes to make a machine that they fit."""
    layers = []
    for number, units in enumerate(machine.units()):
        name = type(units).__name__
        if name not in _MAKERS:
            raise FileError(f"layer {number}: {name} units cannot be saved; {_reason(units)}")
        layers.append({"type": name, "n": units.n} | ({"q": units.q} if isinstance(units, Categorical) else {}))
    tensors = {name: value.detach().cpu().contiguous() for name, value in machine.state_dict().items()}
    return tensors, {"layers": layers, "dtype": str(machine.dtype).removeprefix("torch.")}


def _reason(units: Units) -> str:
    """Why units cannot be saved."""
    if isinstance(units, Custom | Conditioned):
        return "a file holds numbers, not functions or evidence"
    return "a file can hold the unit types of tapmachine only; use torch.save(machine.state_dict(), …) for others"


def rebuild(path: str | Path, tensors: Mapping[str, Tensor], description: Description) -> BoltzmannMachine:
    """The machine that `describe` was given."""
    try:
        layers = [_layer(given, _within(tensors, f"layers.{i}.")) for i, given in enumerate(description["layers"])]
        n_edges = max(1, len(layers) - 1)
        weights = [tensors[f"weights.{edge}"] for edge in range(n_edges)]
        machine = BoltzmannMachine([units.to(weights[0].dtype) for units in layers], weights)
        machine.load_state_dict(dict(tensors))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"{path}: what is in the file does not make a machine: {reason}") from None
    return machine


def _within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _layer(given: Description, own: Mapping[str, Tensor]) -> Units:
    if given["type"] not in _MAKERS:
        raise FileError(f"unit type {given['type']!r} is not known to this version")
    # A size that the tensors do not bear out must not be allocated.
    n = given["n"]
    if not isinstance(n, int) or not any(z.dim() and z.shape[0] == n for z in own.values()):
        raise FileError(f"no parameter has the size {n!r} of its layer")
    q = given.get("q", 1)
    if not isinstance(q, int) or n * q > sum(z.numel() for z in own.values()):
        raise FileError(f"no parameter has {q!r} states for each unit")
    return _MAKERS[given["type"]](given, own)


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
