"""Arrays in .npy, .npz and idx files, optionally compressed, with checks against damaged and hostile files."""

import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from tapmachine.data.errors import DataError

Array = np.ndarray[Any, Any]

MANY_BYTES = 2**28  # any compressed file may expand to this size, or to
MOST_TIMES = 100  # this multiple of its compressed size, whichever is larger
DENSE_BYTES = 2**30  # a row or column of any sparse matrix may take this much memory
NPY = b"\x93NUMPY"  # first bytes of a .npy file
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def from_npy(content: bytes, path: Path) -> Array:
    """Read the content of a .npy file."""
    with _plain_array(path):
        _check_header(io.BytesIO(content), len(content))
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def map_npy(path: Path) -> Array:
    """Memory-map a .npy file."""
    with _plain_array(path):
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _check_header(file: BinaryIO, size: int) -> None:
    """Check the header of a .npy file against the file's size before allocating memory for it."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header declares {dtype} of shape {shape}, which does not match its size")


@contextmanager
def _plain_array(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: is not a plain array of numbers: {error}") from None


def from_npz(path: Path, key: str) -> Any:
    """Read an array of an .npz file, or the sparse matrix that SciPy saved there."""
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as file:
                return _npz_array(file, path, key)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError) as error:
            raise DataError(f"{path}: is not an .npz file of plain arrays: {error}") from None


def _npz_array(file: zipfile.ZipFile, path: Path, key: str) -> Any:
    entries = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
    keys, most = list(entries), _most_bytes(path.stat().st_size)

    def member(name: str) -> Array:
        if entries[name].file_size > most:
            raise DataError(f"{path}: holds more than {most:,} bytes, far too many for its compressed size")
        with file.open(entries[name]) as part:
            return from_npy(part.read(most + 1), path)

    if not keys:
        raise DataError(f"{path}: holds no arrays")
    if not key and entries.keys() >= {"format", "shape", "data"}:
        return _from_sparse(member, path)
    if not key and len(keys) != 1:
        raise DataError(f"{path}: holds {', '.join(keys)}; choose one, as in {path}:{keys[0]}")
    if key and key not in entries:
        raise DataError(f"{path}: holds {', '.join(keys)}, but not {key!r}")
    return member(key or keys[0])


def _from_sparse(member: Callable[[str], Array], path: Path) -> Any:
    """Read a matrix saved by scipy.sparse.save_npz; duplicate entries are summed, as in SciPy."""
    from scipy.sparse import coo_array

    kind, shape, data = str(member("format").astype(str)), tuple(member("shape").tolist()), member("data")
    if kind not in ("csr", "csc", "coo") or len(shape) != 2:
        raise DataError(f"{path}: holds a sparse {kind} array of shape {shape}; use .tocsr() before saving")
    if data.dtype.kind not in "biuf":
        raise DataError(f"{path}: holds {data.dtype.name}, not numbers")
    most = max(DENSE_BYTES, _most_bytes(path.stat().st_size))
    if max(shape) * data.dtype.itemsize > most:
        raise DataError(
            f"{path}: holds a sparse matrix of shape {shape}, a row or column of which would take more than {most:,} "
            "bytes; use fewer columns"
        )
    try:
        if kind == "coo":
            places = member("row"), member("col")
        else:
            outer = np.repeat(np.arange(len(member("indptr")) - 1), np.diff(member("indptr")))
            places = (outer, member("indices")) if kind == "csr" else (member("indices"), outer)
        if any(place.shape != data.shape or (place.size and place.min() < 0) for place in places):
            raise IndexError("its values and indices do not match")  # SciPy would count backwards
        if any(place.dtype.kind not in "iu" for place in places):
            raise TypeError("its indices are not integers")
        return coo_array((data, places), shape).tocsr()
    except (IndexError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is not a valid SciPy sparse matrix: {error}") from None


def from_idx(content: bytes, name: str) -> Array:
    """Read the content of an idx file."""
    kind, n_dimensions = content[2], content[3]
    start = 4 + 4 * n_dimensions
    if len(content) < start:
        raise DataError(f"{name}: ends inside its header")
    shape = struct.unpack(f">{n_dimensions}I", content[4:start])
    dtype = np.dtype(IDX_TYPES[kind])
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{name}: has {len(content) - start} bytes of data, but its header declares shape {shape}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def decompressed(content: bytes, path: Path) -> bytes:
    """Decompress the content of a .gz file. Raises DataError for decompression bombs."""
    most = _most_bytes(len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        expanded = file.read(most + 1)
    if len(expanded) > most:
        raise DataError(f"{path}: holds more than {most:,} bytes, far too many for its compressed size")
    return expanded


def _most_bytes(size: int) -> int:
    """Maximum decompressed size of a file; decompression bombs expand about a thousandfold."""
    return max(MANY_BYTES, MOST_TIMES * size)
