"""Access to files: only regular files are read, and a file is replaced as a whole or not at all."""

import os
import stat
from contextlib import suppress
from pathlib import Path

SMALL = 2**24  # maximum number of bytes of a settings file, manifest or list of weights in JSON


def check_regular(path: str | Path, most: float = float("inf")) -> int:
    """Return the size of a regular file in bytes.

    Raises:
        OSError: If the path is that of a pipe, a device or a directory, which may have no end, or if the file has more
            than `most` bytes.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > most:
        raise OSError(f"the file has {status.st_size:,} bytes; expected at most {most:,}")
    return status.st_size


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether a path within a folder is, or passes through, a link to somewhere else."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def read_bytes(path: str | Path, most: float = float("inf")) -> bytes:
    """Return the content of a regular file; see `check_regular`."""
    check_regular(path, most)
    return Path(path).read_bytes()


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a temporary file, flush it to disk and rename it, so that readers see either the old or the new file.

    Temporary files that killed processes have left for the same path are removed.

    Raises:
        OSError: If the file cannot be written. The error has the name of the file.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    flush_folder(path.parent)


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files for a path whose processes no longer run."""
    start, end = f".{path.name}.", ".part"
    for part in path.parent.iterdir():
        number = part.name.removeprefix(start).removesuffix(end)
        if part.name == f"{start}{number}{end}" and number.isdecimal() and not _is_running(int(number)):
            part.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True


def flush_folder(folder: Path) -> None:
    """Flush the entries of a directory to disk, so that a rename survives a crash."""
    with suppress(OSError):  # not supported by some file systems
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
