"""Run directories: crash-safe storage of the settings, records and checkpoints of a training run.

RUN/settings.json        the settings
RUN/metrics.jsonl        one record per epoch
RUN/events.jsonl         log of the start, continuation, interruption, end or failure of the run
RUN/machine.safetensors  the machine at the last checkpoint
RUN/machines/            kept machines, by epoch
RUN/checkpoints/         the last two training states, and a manifest with their digests
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from tapmachine.data.errors import DamageWarning, FileError, RunError, warn
from tapmachine.data.files import SMALL, check_regular, leads_out, read_bytes, write_atomically
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import FORMAT, MACHINE_FILE, Description, read_tensors, save, write_tensors
from tapmachine.runs.settings import Settings, check_names

Record = dict[str, Any]  # of an epoch

KEPT = 2  # number of checkpoints; if the last one is damaged, the previous one is used
CHECKPOINT = re.compile(r"epoch-(\d+)(-partial)?\.safetensors")
PART = re.compile(r"\.(settings\.json|metrics\.jsonl|manifest\.json|(machine|epoch-[\w-]+)\.safetensors)\.\d+\.part")


class RunFolder:
    """Directory of a training run.

    Only one process at a time may write to a run directory. Use the object as a context manager to lock the directory.

    Args:
        path: Path to the directory, which is created on the first write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._known: tuple[tuple[int, ...], tuple[Settings, list[str]]] | None = None
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: not a directory; expected a run directory")
        self._check_entries()

    def _check_entries(self) -> None:
        """Raise a RunError for pipes, devices, and links to other directories, whose files a run could change."""
        for path in [*self.path.glob("*"), *self.path.glob("checkpoints/*"), *self.path.glob("machines/*")]:
            if leads_out(path, self.path):
                raise RunError(f"{path}: the link leads out of the run directory; replace it with a copy")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise RunError(f"{path}: not a regular file")

    # ----- one process at a time

    def __enter__(self) -> "RunFolder":
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"{self.path}: cannot write to this directory: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise RunError(f"{self.path}: another process is training in this directory") from None
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
        """Return the names of the files in a directory that is not a run directory; otherwise, an empty list."""
        if not self.path.exists() or self.settings() is not None:
            return []
        of_run = {".lock", *(part.name for part in self._parts())}
        return sorted(path.name for path in self.path.iterdir() if path.name not in of_run)

    def _parts(self) -> list[Path]:
        """Return the files that a killed process left partially written."""
        folders = (self.path, self.path / "checkpoints", self.path / "machines")
        return [part for folder in folders for part in folder.glob(".*.part") if PART.fullmatch(part.name)]

    # ----- settings

    def settings(self) -> Settings | None:
        """Return the settings of the run, or None for a new directory."""
        content = self._content()
        return None if content is None else content[0]

    def digests(self) -> list[str]:
        """Return the digests of the current settings and of earlier ones, which had another number of epochs.

        A new directory has no digests.
        """
        content = self._content()
        return [] if content is None else [*content[1], content[0].digest()]

    def _content(self) -> tuple[Settings, list[str]] | None:
        """Return the settings and earlier digests. The file is read again only if it was replaced."""
        path = self.path / "settings.json"
        try:
            status = path.stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._known is None or self._known[0] != state:
                self._known = state, _settings_and_digests(path, read_bytes(path, SMALL))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error}") from None
        return self._known[1]

    def write_settings(self, settings: Settings, earlier: Sequence[str] = ()) -> None:
        """Write the settings and the digests of earlier settings to one file.

        The file is replaced atomically, so a killed run has either the old or the new settings. The digests identify
        checkpoints and machines saved with earlier settings.
        """
        content = {"format": FORMAT, "settings": settings.as_json()} | ({"earlier": list(earlier)} if earlier else {})
        write_atomically(self.path / "settings.json", (json.dumps(content, indent=2) + "\n").encode())

    # ----- records

    def records(self) -> list[Record]:
        """Return the records of all epochs. Damaged lines are skipped with a `DamageWarning`."""
        records, damaged = self._read_records()
        if damaged:
            warn(f"{_describe_damage(self._records_path, damaged)}; skipped", DamageWarning)
        return records

    def damaged_records(self) -> str:
        """Return a description of the damaged lines of the records, or an empty string if no line is damaged."""
        return _describe_damage(self._records_path, self._read_records()[1])

    def forget_records_after(self, epoch: int) -> None:
        """Remove the records of epochs that will be repeated, and damaged lines."""
        lines = [json.dumps(record) + "\n" for record in self.records() if record["epoch"] <= epoch]
        write_atomically(self._records_path, "".join(lines).encode())

    @property
    def _records_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def _read_records(self) -> tuple[list[Record], dict[int, bytes]]:
        saved_epoch = 0
        with suppress(RunError):
            saved_epoch = self.last_epoch() or 0
        return _records_in(self._records_path, saved_epoch)

    def note(self, event: str, **details: Any) -> None:
        """Append a line to the event log. Write errors are ignored."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": when, "process": os.getpid(), "event": event, **details})
        with suppress(OSError), (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    # ----- checkpoints

    def checkpoint(self, epoch: int, tensors: dict[str, Tensor], values: Description, partial: bool = False) -> None:
        """Save the training state after an epoch or, if `partial` is True, within the next epoch.

        The previous checkpoint is kept until the new one is on disk.
        """
        name = f"epoch-{epoch:06d}{'-partial' if partial else ''}.safetensors"  # does not replace the full checkpoint
        path, before = self.path / "checkpoints" / name, self._manifest()
        write_tensors(path, tensors, {"kind": "training", "epoch": epoch, "values": values})
        entries = [entry for entry in before if entry["file"] != name]
        entries = [*entries, {"file": name, "epoch": epoch, "sha256": _sha256(path)}][-KEPT:]
        write_atomically(path.parent / "manifest.json", json.dumps(entries, indent=2).encode())
        for old in {entry["file"] for entry in before} - {entry["file"] for entry in entries}:
            (path.parent / old).unlink(missing_ok=True)

    def last_checkpoint(self) -> tuple[int, dict[str, Tensor], Description] | None:
        """Return the epoch, tensors and values of the last intact checkpoint, or None before the first checkpoint."""
        entries = self._manifest()
        for entry in reversed(entries):
            path, damage = self.path / "checkpoints" / entry["file"], self._damage(entry)
            try:
                if damage:
                    raise FileError(f"{path}: damaged checkpoint; {damage}")
                tensors, description = read_tensors(path, "training")
                return description["epoch"], tensors, description["values"]
            except (FileError, KeyError) as error:
                warn(f"{error}; using the previous checkpoint, if any", DamageWarning)
        if entries:
            raise RunError(f"{self.path}: all checkpoints are damaged; nothing was changed")
        return None

    def damaged_checkpoints(self) -> dict[str, str]:
        """Return descriptions of the damage to checkpoints, by file name; an intact checkpoint has an empty string."""
        return {entry["file"]: self._damage(entry) for entry in self._manifest()}

    def _damage(self, entry: dict[str, Any]) -> str:
        """Describe the damage to a checkpoint, or return an empty string."""
        try:
            is_intact = _sha256(self.path / "checkpoints" / entry["file"]) == entry["sha256"]
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        return "" if is_intact else "its content does not match the manifest"

    def _manifest(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoints" / "manifest.json"
        try:
            entries = json.loads(read_bytes(path, SMALL))
        except FileNotFoundError:
            return self._entries_of_files()
        except (OSError, ValueError, RecursionError):
            raise RunError(f"{path}: the manifest is damaged; nothing was changed") from None
        is_manifest = isinstance(entries, list) and all(
            isinstance(entry, dict)
            and CHECKPOINT.fullmatch(str(entry.get("file")))
            and isinstance(entry.get("epoch"), int)
            and "sha256" in entry
            for entry in entries
        )
        if not is_manifest:
            raise RunError(f"{path}: not a manifest of checkpoints; nothing was changed")
        return list(entries)

    def _entries_of_files(self) -> list[dict[str, Any]]:
        """Rebuild a missing manifest from the checkpoint files of a run."""
        folder = self.path / "checkpoints"
        names = [CHECKPOINT.fullmatch(path.name) for path in folder.glob("epoch-*.safetensors")]
        found = sorted((int(name[1]), name[2] or "", name[0]) for name in names if name)
        return [{"file": name, "epoch": epoch, "sha256": _sha256(folder / name)} for epoch, _, name in found]

    # ----- machines

    @property
    def machine_path(self) -> Path:
        """Path to the machine at the last checkpoint."""
        return self.path / MACHINE_FILE

    def save_machine(self, machine: BoltzmannMachine, data: Description, epoch: int | None = None) -> None:
        """Save the machine at the last checkpoint or, if `epoch` is passed, as a kept machine."""
        save(machine, self.machine_path if epoch is None else self.machine_at(epoch), data)

    def kept_machines(self) -> dict[int, Path]:
        """Return the paths of the kept machines by epoch, in increasing order."""
        files = (self.path / "machines").glob("epoch-*.safetensors")
        paths = {path.stem.removeprefix("epoch-"): path for path in files}
        return dict(sorted((int(epoch), path) for epoch, path in paths.items() if epoch.isdecimal()))

    def last_epoch(self) -> int | None:
        """Return the epoch of the last checkpoint, or None before the first checkpoint."""
        entries = self._manifest()
        return int(entries[-1]["epoch"]) if entries else None

    def machine_at(self, epoch: int) -> Path:
        """Return the path to the machine that was kept at a given epoch."""
        return self.path / "machines" / f"epoch-{epoch:06d}.safetensors"


def _settings_and_digests(path: Path, text: bytes) -> tuple[Settings, list[str]]:
    """Parse the settings file of a run."""
    try:
        content = json.loads(text)
        version, settings, earlier = content["format"], content["settings"], content.get("earlier", [])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise RunError(f"{path}: not a settings file of a run") from None
    if version != FORMAT:
        raise RunError(f"{path}: unsupported format {version!r}; expected {FORMAT}")
    if not isinstance(settings, dict) or not isinstance(earlier, list):
        raise RunError(f"{path}: not a settings file of a run")
    try:
        return Settings(**check_names(settings, str(path))), [str(digest) for digest in earlier]
    except TypeError as error:
        raise RunError(f"{path}: {error}") from None


def _sha256(path: Path) -> str:
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ----- lines of the records


def _records_in(path: Path, saved_epoch: int) -> tuple[list[Record], dict[int, bytes]]:
    """Read the records and the damaged lines of a file.

    A last line that was truncated when the process was killed does not count as damaged.

    Args:
        path: Path to the file. A missing file has no records.
        saved_epoch: Epoch of the last checkpoint.

    Returns:
        The records, and the damaged lines by line number.
    """
    try:
        lines = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return [], {}
    parsed = {line_number: _record_in(line) for line_number, line in enumerate(lines, 1) if line}
    epochs = [record["epoch"] for record in parsed.values() if record is not None]
    records = list[Record]()
    for line_number, record in parsed.items():
        if record is None:
            continue
        # Epochs increase with each line. Of two lines out of order, the one that does not fit its neighbors is damaged.
        last, after = records[-1]["epoch"] if records else 0, epochs[len(records) + 1 :][:1]
        if record["epoch"] <= last or (after and last < after[0] < record["epoch"]):
            epochs.pop(len(records))
            parsed[line_number] = None
        else:
            records.append(record)
    damaged = {line_number: lines[line_number - 1] for line_number, record in parsed.items() if record is None}
    # A record is written before the checkpoint of its epoch, so a truncated record is newer than the last checkpoint.
    if max((record["epoch"] for record in records), default=0) >= saved_epoch:
        damaged.pop(len(lines), None)
    return records, damaged


def _record_in(line: bytes) -> Record | None:
    """Parse the record in a line, or return None if the line is damaged."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("epoch")) is int else None


def _describe_damage(path: Path, damaged: dict[int, bytes]) -> str:
    """Return a description of the damaged lines of a file, or an empty string if no line is damaged."""
    line_numbers = ", ".join(map(str, damaged))
    if not damaged:
        return ""
    return f"{path}: {f'line {line_numbers} is' if len(damaged) == 1 else f'lines {line_numbers} are'} damaged"
