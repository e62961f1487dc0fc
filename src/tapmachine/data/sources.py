"""Readers for named data sets and data files, which also check the values.

Code in data files is never executed. Rows of large .npy files are read from disk on demand.
"""

import csv
import hashlib
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.arrays import decompressed, from_idx
from tapmachine.data.errors import DataError
from tapmachine.data.files import read_bytes
from tapmachine.data.formats import read_file, read_folder
from tapmachine.data.rows import LazyRows
from tapmachine.data.text import COMPLETE_ROWS, TextLayout

Array = np.ndarray[Any, Any]

NAMED = ("digits", "mnist", "mnist-test")
INTENSITIES = 127  # bytes are intensities from 0 to 255 if any is larger than this; otherwise, states or counts
MNIST_FOLDER = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# Digests of the decompressed content, which do not depend on the compression.
MNIST = {
    "train": ("train-images-idx3-ubyte.gz", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "test": ("t10k-images-idx3-ubyte.gz", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "labels": ("train-labels-idx1-ubyte.gz", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
}


@dataclass(frozen=True)
class DataSet:
    """Rows of numbers from one source, with a description of the source.

    Attributes:
        rows: Real numbers of shape (N, n). Images are flattened, and bytes that represent intensities are scaled to
            [0, 1]. Large .npy files stay on disk, and rows of large sparse matrices are converted to dense rows on
            demand.
        name: Name of the source.
        image_shape: Height and width, if rows are images.
        scale_beyond: Argument of `read` that scales other files in the same way: 1 if bytes were scaled, None if bytes
            must not be scaled.
        layout: Layout of a text file.
        notes: Notes on how the data were processed.
        table: The columns of a table, or a DataFrame, instead of rows, if the source is a table with text.
    """

    rows: Array | LazyRows
    name: str
    image_shape: tuple[int, int] | None = None
    scale_beyond: int | None = INTENSITIES
    layout: TextLayout | None = None
    notes: tuple[str, ...] = ()
    table: Any = None

    def digest(self) -> str:
        """SHA-256 digest of the rows, which does not depend on the file format."""
        digest = hashlib.sha256(f"{self.rows.dtype} {self.rows.shape}".encode())
        parts = self.rows.parts() if isinstance(self.rows, LazyRows) else [(0, self.rows)]
        for _, part in parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def read(
    source: str | Path,
    gaps: bool = False,
    scale_beyond: int | None = INTENSITIES,
    as_table: bool = False,
    texts: Collection[str] = (),
) -> DataSet:
    """Read rows from a named data set, a file or a directory of files.

    Args:
        source: Name of a data set or path of a file. The named data sets are `digits` (8×8 images from scikit-learn)
            and `mnist` and `mnist-test` (downloaded once). Supported files are .npy, .npz, .csv and idx files, which
            may be compressed (.gz), and .parquet and .h5ad files. To select an array of an .npz file, append its name,
            as in `faces.npz:train`. Large SciPy sparse matrices stay sparse. The .npy files in a directory are
            concatenated in alphabetical order.
        gaps: Whether missing values are allowed, as NaN or as empty cells of a .csv file (default: False).
        scale_beyond: Threshold for scaling bytes (uint8), which are divided by 255 if the largest one exceeds the
            threshold (default: 127). None disables scaling.
        as_table: Whether to return the columns of a .csv or .parquet file as a table (default: only if some of them are
            not numbers). `tapmachine.tables.codec` encodes tables as rows.
        texts: Names of columns to read as text.

    Returns:
        The rows and a description of the source.

    Raises:
        DataError: If the data cannot be read. The message names the file and, for an invalid value, its row and column.

    Example:
        >>> from tapmachine.data.sources import read
        >>> read("digits").rows.shape
        (1797, 64)
    """
    if str(source) in NAMED and not Path(source).is_file():
        return _digits() if str(source) == "digits" else _mnist(str(source))
    path, _, key = str(source).partition(".npz:")
    path, key = (f"{path}.npz", key) if key else (str(source), "")
    if "\0" in path:
        raise DataError(f"{path!r}: invalid file name")
    layout = None
    try:
        if Path(path).is_dir():
            arrays = read_folder(Path(path))
        else:
            array, layout = read_file(Path(path), key, as_table, texts)
            if not hasattr(array, "dtype"):
                notes = () if layout is None else layout.notes
                return DataSet(np.empty((0, 0)), str(source), None, None, layout, notes, array)
            arrays = {str(source): array}
    except FileNotFoundError:
        raise DataError(f"{path}: file not found; named data sets: {', '.join(NAMED)}") from None
    except (OSError, EOFError, zlib.error, csv.Error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if as_table:
        raise DataError(f"{path}: columns have no names; expected a table, such as a .csv file with a header")
    data_set = as_rows(arrays, str(source), gaps, scale_beyond)
    return data_set if layout is None else replace(data_set, layout=layout, notes=data_set.notes + layout.notes)


def as_rows(
    arrays: Mapping[str, Any], name: str, gaps: bool = False, scale_beyond: int | None = INTENSITIES
) -> DataSet:
    """Concatenate named arrays, whose first dimension indexes rows, into one data set.

    Large memory maps stay on disk, and large sparse matrices in SciPy's CSR format stay sparse. If `gaps` is True, NaN
    marks a missing value.
    """
    first_name, first = next(iter(arrays.items()))
    for own_name, array in arrays.items():
        _check_array(array, own_name)
        if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
            kinds = [f"{own.dtype.name} of shape {own.shape[1:]}" for own in (array, first)]
            raise DataError(f"{own_name}: rows are {kinds[0]}, but rows of {first_name} are {kinds[1]}")
    image_shape = first.shape[1:] if first.ndim == 3 else _square(first.shape[1]) if first.ndim == 2 else None
    rows = LazyRows(arrays)
    largest = max(float(np.fmax.reduce(part, axis=None)) for _, part in rows.parts())
    later, notes = INTENSITIES if scale_beyond is not None and largest <= 1 else None, list[str]()
    if first.dtype == np.uint8 and scale_beyond is not None and largest > scale_beyond:
        rows, later = rows.mapped(lambda part: part.astype(np.float32) / 255), 1
        notes.append(f"{name}: bytes 0–255 scaled to [0, 1]")
    elif first.dtype == np.uint8 and scale_beyond == 1:
        notes.append(f"{name}: all bytes are 0 or 1; not scaled")
    rows = rows.mapped(_as_floats)
    if first.dtype.kind == "f":
        _check_finite(rows, gaps)
    if rows.is_sparse:
        stays = len(rows) > rows.most_sampled
        size = f"{rows.shape[0]} × {rows.shape[1]}, {sum(array.nnz for array in arrays.values()):,} values"
        notes.append(f"{name}: sparse matrix, {size}; {'rows are made dense in parts' if stays else 'made dense'}")
    else:
        stays = len(rows) > rows.most_in_memory and all(isinstance(array, np.memmap) for array in arrays.values())
    return DataSet(rows if stays else np.asarray(rows), name, image_shape, later, notes=tuple(notes))


def _as_floats(rows: Array) -> Array:
    double = rows.dtype.kind == "f" and rows.dtype.itemsize >= 8
    with np.errstate(over="ignore", invalid="ignore"):  # overflowing values become infinite and are reported later
        return rows.astype(np.float64 if double else np.float32, copy=False)


def _check_array(array: Any, name: str) -> None:
    if array.dtype.kind not in "biuf":
        remedy = " (encode text as 0, 1, 2, …)" if array.dtype.kind in "SU" else ""
        raise DataError(f"{name}: the values are {array.dtype.name}; expected numbers{remedy}")
    if array.ndim < 2:
        raise DataError(f"{name}: the shape is {array.shape}; expected at least two dimensions, with rows first")
    if 0 in array.shape:
        raise DataError(f"{name}: the shape is {array.shape}; expected at least one row and one column")


def _check_finite(rows: LazyRows, gaps: bool) -> None:
    for first, part in rows.parts():
        bad = np.argwhere(np.isinf(part) if gaps else ~np.isfinite(part))
        if len(bad):
            row, column = bad[0]
            name, own_row = rows.place(first + int(row))
            value = part[row, column]
            rule = COMPLETE_ROWS if np.isnan(value) else "expected finite values"
            rule = f"{rule}, or NaN for missing values" if gaps else rule
            raise DataError(f"{name}: row {own_row}, column {column} is {value}; {rule}")


def _square(n: int) -> tuple[int, int] | None:
    side = math.isqrt(n)
    return (side, side) if side > 3 and side * side == n else None


def _digits() -> DataSet:
    from sklearn.datasets import load_digits

    return as_rows({"digits": load_digits().images.astype(np.float32) / 16}, "digits")


def digit_labels() -> Array:  # (1797,)
    """Return the labels of the rows of `digits`, integers from 0 to 9."""
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target)


def mnist_labels(path: Path | None = None) -> Array:  # (60000,)
    """Return the labels of the rows of `mnist`, integers from 0 to 9, read from a file or downloaded once."""
    if path is None:
        return from_idx(*_download("labels")).astype(np.int64)
    try:
        return from_idx(decompressed(read_bytes(path), path), str(path)).astype(np.int64)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _mnist(name: str) -> DataSet:
    data_set = as_rows({name: from_idx(*_download("train" if name == "mnist" else "test"))}, name)
    return replace(data_set, notes=())  # values of this data set are always in [0, 1]


def _download(part: str) -> tuple[bytes, str]:
    """Download an MNIST file, unless it is cached, and return its content and path."""
    try:
        import pooch
    except ImportError:
        raise DataError("downloading mnist requires pooch; install it with: pip install pooch") from None
    name, digest = MNIST[part]
    try:
        path = pooch.retrieve(MNIST_FOLDER + name, known_hash=None, fname=name, path=pooch.os_cache("tapmachine"))
    except Exception as error:
        raise DataError(f"mnist could not be downloaded ({error}); use the path of {name} instead") from None
    content = decompressed(read_bytes(path), Path(path))
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path}: the file is corrupt; delete it and try again")
    return content, path
