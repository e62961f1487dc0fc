"""The arrays in .npy, .npz, .csv and idx files, and in folders of .npy files, as they are. Nothing is executed."""

import csv
import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

MANY_BYTES = 2**28  # that any compressed file may hold, and
MOST_TIMES = 100  # so many times its own size
NPY = b"\x93NUMPY"  # how such a file begins
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class DataError(ValueError):
    """Data that cannot be read, or are not rows of numbers."""


def read_folder(folder: Path) -> dict[str, Array]:
    """The arrays of a folder of .npy files by their paths, in the order of their names; memory maps."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not paths:
        raise DataError(f"{folder}: is an empty folder; one of data holds .npy files")
    for path in paths:
        if path.suffix != ".npy" or path.is_dir():
            raise DataError(f"{path}: is in a folder of data, which must hold .npy files and nothing else")
    return {str(path): read_file(path, "", False) for path in paths}


def read_file(path: Path, key: str, gaps: bool) -> Array:
    """The array in a file; of a plain .npy file a memory map.

    Args:
        path: of the file.
        key: of the array, in an .npz file.
        gaps: whether a cell of a .csv file may be empty, which is NaN then.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return _from_npz(path, key)
    with path.open("rb") as file:
        is_npy = file.read(len(NPY)) == NPY
    if is_npy:
        return _map_npy(path)
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = decompressed(content, path)
    if content.startswith(NPY):
        return _from_npy(content, path)
    if len(content) >= 4 and content[:2] == b"\0\0" and content[2] in IDX_TYPES:
        return from_idx(content, str(path))
    if name.endswith((".csv", ".tsv", ".txt")):
        return _from_csv(content, path, "\t" if name.endswith(".tsv") else None, gaps)
    raise DataError(f"{path}: is not a .npy, .npz, .csv or idx file")


def decompressed(content: bytes, path: Path) -> bytes:
    """The content of a .gz file, unless it would be out of all proportion."""
    most = _most_bytes(len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise DataError(f"{path}: holds more than {most:,} bytes, which is out of proportion to its size")
    return found


def _most_bytes(size: int) -> int:
    """What a compressed file of a size may hold: files that are made to fill the memory hold a thousand times more."""
    return max(MANY_BYTES, MOST_TIMES * size)


def _from_npy(content: bytes, path: Path) -> Array:
    with _plain_array(path):
        _check_header(io.BytesIO(content), len(content))
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _map_npy(path: Path) -> Array:
    with _plain_array(path):
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _check_header(file: BinaryIO, size: int) -> None:
    """Before memory is taken for what the header says."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header says {dtype} of shape {shape}, which it does not hold")


@contextmanager
def _plain_array(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: is not a plain array of numbers: {error}") from None


def _from_npz(path: Path, key: str) -> Array:
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as file:
                entries = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
                keys = list(entries)
                if not keys:
                    raise DataError(f"{path}: holds no arrays")
                if not key and len(keys) != 1:
                    raise DataError(f"{path}: holds {', '.join(keys)}; say which one, as in {path}:{keys[0]}")
                if key and key not in entries:
                    raise DataError(f"{path}: holds {', '.join(keys)}, but no {key!r}")
                chosen, most = entries[key or keys[0]], _most_bytes(path.stat().st_size)
                if chosen.file_size > most:
                    raise DataError(f"{path}: holds more than {most:,} bytes, which is out of proportion to its size")
                with file.open(chosen) as member:
                    content = member.read(most + 1)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError) as error:
            raise DataError(f"{path}: is not an .npz file of plain arrays: {error}") from None
    return _from_npy(content, path)


def from_idx(content: bytes, name: str) -> Array:
    """The array in the content of an idx file."""
    kind, n_dimensions = content[2], content[3]
    start = 4 + 4 * n_dimensions
    if len(content) < start:
        raise DataError(f"{name}: ends inside its header")
    shape = struct.unpack(f">{n_dimensions}I", content[4:start])
    dtype = np.dtype(IDX_TYPES[kind])
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{name}: has {len(content) - start} bytes of data, where its header says shape {shape}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def _from_csv(content: bytes, path: Path, delimiter: str | None, gaps: bool) -> Array:
    """Numbers separated by commas (or what the first line shows), perhaps under a line of names."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not text in UTF-8: {error}") from None
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if (line if gaps else line.strip())]
    lines = [line for _, line in numbered]
    if not lines:
        raise DataError(f"{path}: is empty")
    if delimiter is None:
        delimiter = next((mark for mark in ",;\t " if mark in lines[0]), ",")
    table = [
        [cell.strip() for cell in row if cell.strip() or delimiter != " "]
        for row in csv.reader(lines, delimiter=delimiter)
    ]
    if len(table) < len(lines):
        raise DataError(f"{path}: a quoted cell goes over several lines; a row must be one line")
    named = [cell for cell in table[0] if cell or not gaps]  # a row of gaps is no line of names
    has_names = len(table) > 1 and bool(named) and all(_number(cell) is None for cell in named)
    width = len(table[0])
    rows = []
    for (number, _), cells in list(zip(numbered, table, strict=True))[1 if has_names else 0 :]:
        if len(cells) != width:
            raise DataError(f"{path}: line {number} has {len(cells)} columns, where the first has {width}")
        values = [float("nan") if gaps and not cell else _number(cell) for cell in cells]
        if None in values:
            column = values.index(None)
            raise DataError(f"{path}: line {number}, column {column + 1} is {cells[column]!r}, not a number")
        rows.append(values)
    return np.array(rows, np.float64)


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_0 as 10
    except ValueError:
        return None
