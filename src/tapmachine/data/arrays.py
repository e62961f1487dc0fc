"""Readers for arrays in .npy, .npz and idx files, with checks for damaged and malicious files."""

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
from tapmachine.data.files import check_regular

Array = np.ndarray[Any, Any]

MANY_BYTES = 2**28  # a compressed file may expand to this number of bytes, or to MOST_TIMES its size if that is more
MOST_TIMES = 100
DENSE_BYTES = 2**30  # a dense row or column of a sparse matrix may take at most this number of bytes
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
        size = check_regular(path)
        with path.open("rb") as file:
            _check_header(file, size)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _check_header(file: BinaryIO, size: int) -> None:
    """Check the header of a .npy file against the size of the file, before memory is allocated for the array."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"the header declares {dtype} of shape {shape}, which does not match the file size")


@contextmanager
def _plain_array(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: not a plain array of numbers: {error}") from None


def from_npz(path: Path, key: str) -> Any:
    """Read an array from an .npz file, or a sparse matrix from an .npz file saved by SciPy."""
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as file:
                return _npz_array(file, path, key)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError) as error:
            raise DataError(f"{path}: not an .npz file of plain arrays: {error}") from None


def _npz_array(file: zipfile.ZipFile, path: Path, key: str) -> Any:
    entries = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
    keys, size = list(entries), path.stat().st_size

    def member(name: str) -> Array:
        check_expansion(entries[name].file_size, size, path)
        with file.open(entries[name]) as part:
            return from_npy(part.read(entries[name].file_size), path)

    if not keys:
        raise DataError(f"{path}: the file contains no arrays")
    if not key and entries.keys() >= {"format", "shape", "data"}:
        return _from_sparse(member, path)
    if not key and len(keys) != 1:
        raise DataError(f"{path}: the file contains several arrays; use one of {path}:{f', {path}:'.join(keys)}")
    if key and key not in entries:
        raise DataError(f"{path}: the file has no array {key!r}; expected one of {', '.join(keys)}")
    return member(key or keys[0])


def _from_sparse(member: Callable[[str], Array], path: Path) -> Any:
    """Read a matrix saved by `scipy.sparse.save_npz`. Duplicate entries are summed, as in SciPy."""
    from scipy.sparse import coo_array

    kind, shape, data = str(member("format").astype(str)), tuple(member("shape").tolist()), member("data")
    if kind not in ("csr", "csc", "coo") or len(shape) != 2:
        raise DataError(f"{path}: unsupported sparse {kind} array of shape {shape}; use .tocsr() before saving")
    if data.dtype.kind not in "biuf":
        raise DataError(f"{path}: the values are {data.dtype.name}; expected numbers")
    check_shape(shape, data.dtype.itemsize, path)
    try:
        if kind == "coo":
            places = member("row"), member("col")
        else:
            outer = np.repeat(np.arange(len(member("indptr")) - 1), np.diff(member("indptr")))
            places = (outer, member("indices")) if kind == "csr" else (member("indices"), outer)
        if any(place.shape != data.shape or (place.size and place.min() < 0) for place in places):
            raise IndexError("values and indices do not match")  # SciPy accepts negative indices
        if any(place.dtype.kind not in "iu" for place in places):
            raise TypeError("indices are not integers")
        return coo_array((data, places), shape).tocsr()
    except (IndexError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a valid SciPy sparse matrix: {error}") from None


def from_idx(content: bytes, name: str) -> Array:
    """Read the content of an idx file."""
    kind, n_dimensions = content[2], content[3]
    start = 4 + 4 * n_dimensions
    if len(content) < start:
        raise DataError(f"{name}: the file ends inside its header")
    shape = struct.unpack(f">{n_dimensions}I", content[4:start])
    dtype = np.dtype(IDX_TYPES[kind])
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{name}: header declares shape {shape}, but there are {len(content) - start} bytes of data")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def decompressed(content: bytes, path: Path) -> bytes:
    """Decompress the content of a .gz file.

    Raises:
        DataError: If the decompressed size is implausibly large.
    """
    most = max(MANY_BYTES, MOST_TIMES * len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        expanded = file.read(most + 1)
    check_expansion(len(expanded), len(content), path)
    return expanded


def check_expansion(n_bytes: int, size: int, path: Path) -> None:
    """Raise a DataError if the content of a compressed file is implausibly large for the size of the file.

    Decompression bombs expand about a thousandfold.
    """
    most = max(MANY_BYTES, MOST_TIMES * size)
    if n_bytes > most:
        raise DataError(f"{path}: decompresses to more than {most:,} bytes, implausibly many for its size")


def check_shape(shape: tuple[int, ...], itemsize: int, path: Path) -> None:
    """Raise a DataError if a dense row or column of a sparse matrix would not fit into memory."""
    if max(shape) * itemsize > DENSE_BYTES:
        raise DataError(
            f"{path}: a dense row or column of the sparse matrix of shape {shape} would take more than "
            f"{DENSE_BYTES:,} bytes; use fewer columns"
        )
