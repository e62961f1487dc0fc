"""Functions that read and write the records of a run, one line of JSON per epoch, and detect damaged lines."""

import json
from pathlib import Path
from typing import Any

from tapmachine.data.files import read_bytes, write_atomically

Record = dict[str, Any]


def read_records(path: Path, saved_epoch: int) -> tuple[list[Record], dict[int, bytes]]:
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
    parsed = {line_number: _parse(line) for line_number, line in enumerate(lines, 1) if line}
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


def _parse(line: bytes) -> Record | None:
    """Parse the record in a line, or return None if the line is damaged."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("epoch")) is int else None


def write_records(path: Path, records: list[Record]) -> None:
    """Replace the records in a file."""
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records).encode())


def describe_damage(path: Path, damaged: dict[int, bytes]) -> str:
    """Return a description of the damaged lines of a file, or an empty string if no line is damaged."""
    line_numbers = ", ".join(map(str, damaged))
    if not damaged:
        return ""
    return f"{path}: {f'line {line_numbers} is' if len(damaged) == 1 else f'lines {line_numbers} are'} damaged"
