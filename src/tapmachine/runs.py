"""Run folders: settings, records and checkpoints of a training on disk, such that nothing that was saved is ever lost.

RUN/settings.json          what was asked for
RUN/metrics.jsonl          a record for each epoch
RUN/metrics.damaged.jsonl  lines of it that could not be read, if there ever were any
RUN/events.jsonl           what happened: begun, gone on, stopped, finished, failed
RUN/machine.safetensors    the machine as it was at the last checkpoint
RUN/machines/              the machine at some of the epochs
RUN/checkpoints/           the last two states of the training, and a manifest with their digests
"""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from tapmachine.files import (
    FORMAT,
    MACHINE_FILE,
    Description,
    FileError,
    read_tensors,
    save,
    write_atomically,
    write_tensors,
)
from tapmachine.machine import BoltzmannMachine

KEPT = 2  # checkpoints: should the last one be damaged, there is the one before


class RunError(ValueError):
    """A run folder that cannot be used as asked."""


class RunWarning(UserWarning):
    """Something about a run folder that its user should know."""


class RunFolder:
    """A folder of one training run.

    As a context manager it is locked: only one process at a time may write to it.

    Args:
        path: of the folder, which is made when something is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: is a file, not a run folder")

    # ----- one process at a time

    def __enter__(self) -> "RunFolder":
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise RunError(f"{self.path}: another process is training in this folder") from None
        for part in self._parts():
            part.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def others(self) -> list[str]:
        """Names of files in the folder that no run has put there; the folder of a run has none to speak of."""
        if not self.path.exists() or self.settings() is not None:
            return []
        own = {".lock", *(part.name for part in self._parts())}
        return sorted(path.name for path in self.path.iterdir() if path.name not in own)

    def _parts(self) -> list[Path]:
        """What a process was writing when it was killed; before there are settings, only those can be ours."""
        if not (self.path / "settings.json").exists():
            return list(self.path.glob(".settings.json.*.part"))
        folders = (self.path, self.path / "checkpoints", self.path / "machines")
        return [part for folder in folders for part in folder.glob(".*.part")]

    # ----- settings

    def settings(self) -> Description | None:
        """What was asked for, or None in a new folder."""
        found = self._settings_file()
        return None if found is None else found["settings"]

    def earlier_digests(self) -> list[str]:
        """Digests of the settings that the run had before its number of epochs, or what is recorded, was changed."""
        found = self._settings_file() or {}
        return [str(digest) for digest in found.get("earlier", ())]

    def _settings_file(self) -> Description | None:
        path = self.path / "settings.json"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        try:
            found = json.loads(text)
            version, settings = found["format"], found["settings"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise RunError(f"{path}: is not the settings of a run") from None
        if version != FORMAT:
            raise RunError(f"{path}: has format {version!r}; this version reads {FORMAT}; another one wrote it")
        if not isinstance(settings, dict) or not isinstance(found.get("earlier", []), list):
            raise RunError(f"{path}: is not the settings of a run")
        return dict(found)

    def write_settings(self, settings: Description, earlier: Sequence[str] = ()) -> None:
        """Writes what is asked for, and the digests of what was asked for earlier.

        Both are in one file, so that a run that is killed has the old settings or the new ones, and knows checkpoints
        and machines of either as its own.
        """
        content = {"format": FORMAT, "settings": settings} | ({"earlier": list(earlier)} if earlier else {})
        write_atomically(self.path / "settings.json", (json.dumps(content, indent=2) + "\n").encode())

    # ----- records

    def records(self) -> list[dict[str, Any]]:
        """The records of all epochs. A damaged line is left out, with a `RunWarning` that names it."""
        found, damaged = self._read_records()
        if damaged:
            warnings.warn(f"{self._damage(damaged)}; skipped", RunWarning, stacklevel=2)
        return found

    def damaged_records(self) -> str:
        """Which lines of the records are damaged, in words; nothing, if all are whole."""
        damaged = self._read_records()[1]
        return self._damage(damaged) if damaged else ""

    def forget_records_after(self, epoch: int) -> None:
        """Drops records of epochs that will be run again. Damaged lines are moved to a file of their own."""
        found, damaged = self._read_records()
        if damaged:
            copy = self.path / "metrics.damaged.jsonl"
            before = copy.read_bytes() if copy.exists() else b""
            new = [line for line in damaged.values() if line not in before.split(b"\n")]  # not twice, after a kill
            write_atomically(copy, before + b"".join(line + b"\n" for line in new))
            warnings.warn(f"{self._damage(damaged)}; moved to {copy.name}", RunWarning, stacklevel=3)
        text = "".join(json.dumps(record) + "\n" for record in found if record["epoch"] <= epoch)
        write_atomically(self.path / "metrics.jsonl", text.encode())

    def _read_records(self) -> tuple[list[dict[str, Any]], dict[int, bytes]]:
        """The records, and lines that are none, by their number. A record that a kill has cut off is neither."""
        try:
            lines = (self.path / "metrics.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], {}
        parsed = {number: _record(line) for number, line in enumerate(lines, 1) if line}
        epochs = [record["epoch"] for record in parsed.values() if record is not None]
        found = list[dict[str, Any]]()
        for number, record in parsed.items():
            if record is None:
                continue
            # Epochs rise from line to line; of two that do not, the one that its neighbours contradict is damaged.
            last, after = found[-1]["epoch"] if found else 0, epochs[len(found) + 1 :][:1]
            if record["epoch"] <= last or (after and last < after[0] < record["epoch"]):
                epochs.pop(len(found))
                parsed[number] = None
            else:
                found.append(record)
        damaged = {number: lines[number - 1] for number, record in parsed.items() if record is None}
        # A record is written before the checkpoint of its epoch: one that was cut off by a kill lies beyond the last.
        saved = 0
        with suppress(RunError):
            saved = self.last_epoch() or 0
        if max((record["epoch"] for record in found), default=0) >= saved:
            damaged.pop(len(lines), None)
        return found, damaged

    def _damage(self, damaged: dict[int, bytes]) -> str:
        which = ", ".join(map(str, damaged))
        lines = f"line {which} is" if len(damaged) == 1 else f"lines {which} are"
        return f"{self.path / 'metrics.jsonl'}: {lines} damaged"

    def note(self, event: str, **details: Any) -> None:
        """Adds a line to the log of what happened to the run; one that cannot be written costs nothing else."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": when, "process": os.getpid(), "event": event, **details})
        with suppress(OSError), (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    # ----- checkpoints

    def checkpoint(self, epoch: int, tensors: dict[str, Tensor], values: Description, partial: bool = False) -> None:
        """Saves the state of a training, after an epoch or in the midst of the next one. The one before stays until
        this one is safe.
        """
        name = f"epoch-{epoch:06d}{'-partial' if partial else ''}.safetensors"  # of its own: that of the epoch stays
        path = self.path / "checkpoints" / name
        write_tensors(path, tensors, {"kind": "training", "epoch": epoch, "values": values})
        entries = [entry for entry in self._manifest() if entry["file"] != path.name]
        entries = [*entries, {"file": path.name, "epoch": epoch, "sha256": _sha256(path)}][-KEPT:]
        write_atomically(path.parent / "manifest.json", json.dumps(entries, indent=2).encode())
        kept = {entry["file"] for entry in entries}
        for old in path.parent.glob("epoch-*.safetensors"):
            if old.name not in kept:
                old.unlink(missing_ok=True)

    def last_checkpoint(self) -> tuple[int, dict[str, Tensor], Description] | None:
        """Epoch, tensors and values of the last checkpoint that is whole; None if there never was one."""
        entries = self._manifest()
        for entry in reversed(entries):
            path = self.path / "checkpoints" / entry["file"]
            try:
                if _sha256(path) != entry["sha256"]:
                    raise FileError(f"{path}: is damaged: its content does not match the manifest")
                tensors, description = read_tensors(path, "training")
                return description["epoch"], tensors, description["values"]
            except (FileError, OSError, KeyError) as error:
                warnings.warn(f"{error}; the one before it is used, if there is one", RunWarning, stacklevel=3)
        if entries:
            raise RunError(f"{self.path}: no checkpoint can be read; nothing was changed")
        return None

    def damaged_checkpoints(self) -> dict[str, str]:
        """What is wrong with each checkpoint, by its name; nothing, if it is whole."""
        found = {}
        for entry in self._manifest():
            path = self.path / "checkpoints" / entry["file"]
            try:
                found[entry["file"]] = "" if _sha256(path) == entry["sha256"] else "does not match the manifest"
            except OSError as error:
                found[entry["file"]] = str(error.strerror)
        return found

    def _manifest(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoints" / "manifest.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return self._without_manifest()
        except (OSError, ValueError, RecursionError):
            raise RunError(f"{path}: is damaged; nothing was changed") from None
        plain = isinstance(found, list) and all(
            isinstance(entry, dict)
            and Path(str(entry.get("file"))).name == entry.get("file")
            and isinstance(entry.get("epoch"), int)
            and "sha256" in entry
            for entry in found
        )
        if not plain:
            raise RunError(f"{path}: is not a manifest of checkpoints; nothing was changed")
        return list(found)

    def _without_manifest(self) -> list[dict[str, Any]]:
        """Of checkpoints that are there all the same: of a run that was killed before it had one, or has lost it."""
        found = []
        for path in (self.path / "checkpoints").glob("epoch-*.safetensors"):
            number, _, partial = path.stem.removeprefix("epoch-").partition("-")
            if number.isdecimal() and partial in ("", "partial"):
                found.append((int(number), partial, path))
        return [{"file": path.name, "epoch": epoch, "sha256": _sha256(path)} for epoch, _, path in sorted(found)]

    # ----- machines

    @property
    def machine_path(self) -> Path:
        """Of the machine as it was at the last checkpoint."""
        return self.path / MACHINE_FILE

    def save_machine(self, machine: BoltzmannMachine, data: Description, epoch: int | None = None) -> None:
        """Saves the machine; with an epoch, beside those of other epochs."""
        save(machine, self.machine_path if epoch is None else self.machine_at(epoch), data)

    def kept_machines(self) -> dict[int, Path]:
        """The machines that were kept, by their epoch, rising."""
        paths = (self.path / "machines").glob("epoch-*.safetensors")
        numbers = {path.stem.removeprefix("epoch-"): path for path in paths}
        return dict(sorted((int(number), path) for number, path in numbers.items() if number.isdecimal()))

    def last_epoch(self) -> int | None:
        """Of the last checkpoint; None if there is none yet."""
        entries = self._manifest()
        return int(entries[-1]["epoch"]) if entries else None

    def machine_at(self, epoch: int) -> Path:
        """Of the machine at an epoch."""
        return self.path / "machines" / f"epoch-{epoch:06d}.safetensors"


class MachineFile(RunFolder):
    """A machine in a file by itself, to be looked at like a run: one without data, records and other epochs.

    Args:
        path: of a file that `save` wrote.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = None
        self._description = read_tensors(self.path, "machine")[1]

    @property
    def machine_path(self) -> Path:
        """Of the file."""
        return self.path

    def settings(self) -> Description:
        """As far as they say how other data are prepared for the machine."""
        visible, dtype = self._description["layers"][0]["type"], self._description["dtype"]
        return {
            "data": str(self.path),
            "visible": "categorical" if visible == "Categorical" else "auto",
            "dtype": dtype if dtype == "float64" else "float32",
        }

    def earlier_digests(self) -> list[str]:
        """Of the run that it is from, if it is from one."""
        return [str(self._description["data"]["run"])] if "run" in self._description.get("data", {}) else []

    def records(self) -> list[dict[str, Any]]:
        """None."""
        return []

    def last_epoch(self) -> int:
        """After which it was saved; 0 if that is not known."""
        return int(self._description.get("data", {}).get("epoch", 0))


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of an epoch in a line; None if there is none."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("epoch")) is int else None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
