"""Read and check rows of numbers from files and from the network.

Files are read by format (npy, npz, csv, idx); nothing in them is executed. Large .npy files stay on disk: their rows
are read on demand.
"""

import csv
import gzip
import hashlib
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.arrays import decompressed, from_idx
from tapmachine.data.columns import Schema
from tapmachine.data.errors import DataError
from tapmachine.data.formats import read_file, read_folder
from tapmachine.data.lazy_rows import LazyRows
from tapmachine.data.raw_columns import RawColumn
from tapmachine.data.text import COMPLETE_ROWS, TextLayout

__all__ = ["NAMED", "DataError", "DataSet", "as_rows", "digit_labels", "mnist_labels", "read"]

Array = np.ndarray[Any, Any]

NAMED = ("digits", "mnist", "mnist-test")
INTENSITIES = 127  # larger bytes are intensities, 0 to 255; otherwise bytes may be states or counts
MNIST_FOLDER = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# Digests of the content after decompression, which do not depend on how it was compressed.
MNIST = {
    "train": ("train-images-idx3-ubyte.gz", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "test": ("t10k-images-idx3-ubyte.gz", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "labels": ("train-labels-idx1-ubyte.gz", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
}


@dataclass(frozen=True)
class DataSet:
    """Rows of numbers.

    Attributes:
        rows: (N, n), real numbers; images are flattened, and bytes with intensities are scaled to [0, 1]. Large .npy
            files stay on disk, and large sparse matrices are made dense when they are read.
        name: Name of the source.
        image_shape: Height and width, if rows are images.
        scale_beyond: Argument of `read` that scales other files in the same way: 1 if bytes were scaled, None if they
            must not be.
        layout: Layout of a text file.
        notes: Notes on how the data were processed.
        schema: Schema of a table with text, whose rows are encoded.
        columns: Original columns of such a table.
    """

    rows: Array | LazyRows
    name: str
    image_shape: tuple[int, int] | None = None
    scale_beyond: int | None = INTENSITIES
    layout: TextLayout | None = None
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    columns: tuple[RawColumn, ...] = ()

    def digest(self) -> str:
        """Digest of the rows, independent of how they are stored."""
        digest = hashlib.sha256(f"{self.rows.dtype} {self.rows.shape}".encode())
        parts = self.rows.parts() if isinstance(self.rows, LazyRows) else [(0, self.rows)]
        for _, part in parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def read(
    source: str | Path,
    gaps: bool = False,
    scale_beyond: int | None = INTENSITIES,
    schema: Schema | None = None,
    columns: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
) -> DataSet:
    """Read rows from a named data set, a file or a folder of files.

    Args:
        source: `digits` (8×8, from scikit-learn), `mnist` or `mnist-test` (downloaded once); or the path of a
            .npy, .npz, .csv or idx file, which may end in .gz, or of a .parquet or .h5ad file. To select an array of an
            .npz file, append its name, as in `faces.npz:train`; large SciPy sparse matrices stay sparse. The .npy files
            of a folder are read in alphabetical order.
        gaps: Whether values may be missing: NaN, or empty cells in a .csv file.
        scale_beyond: Bytes (uint8) are divided by 255 if the largest is greater than this value; None disables
            scaling.
        schema: Schema that the table must have (default: inferred, if a .csv or .parquet file has columns other than
            numbers).
        columns: Column kinds by name, which override inferred ones: real, count, binary or categorical.
        optional: Columns of the schema that may be missing.

    Raises:
        DataError: If the data cannot be read; it names the file, row and column.

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
            texts = () if schema is None else schema.texts
            array, layout = read_file(Path(path), key, gaps, schema is not None or bool(columns), texts)
            if isinstance(array, list):
                return _from_table(array, str(source), gaps, layout, schema, columns, optional)
            arrays = {str(source): array}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; named data sets are {', '.join(NAMED)}") from None
    except (OSError, EOFError, zlib.error, csv.Error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if columns or schema is not None:
        raise DataError(f"{path}: has no named columns; expected a table, such as a .csv file with a header")
    data_set = as_rows(arrays, str(source), gaps, scale_beyond)
    if layout is None:
        return data_set
    return replace(data_set, layout=layout, notes=data_set.notes + _notes_on_text(data_set, layout))


def _from_table(
    columns: list[RawColumn],
    name: str,
    gaps: bool,
    layout: TextLayout | None,
    schema: Schema | None,
    kinds: Mapping[str, str] | None,
    optional: Sequence[str],
) -> DataSet:
    """Encode the rows of a table with columns of text."""
    try:
        own = schema or Schema.infer(columns, kinds)
        rows = own.encode(columns, optional)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    for column in [] if gaps else columns:
        if column.gaps.any():
            row = int(column.gaps.argmax())
            raise DataError(f"{name}: row {row}, column {column.name!r} is empty; {COMPLETE_ROWS}")
    notes = tuple(f"{name}: {line}" for line in own.describe().splitlines()) if schema is None else ()
    return DataSet(rows, name, None, None, layout, notes, own, tuple(columns))


def as_rows(
    arrays: Mapping[str, Any], name: str, gaps: bool = False, scale_beyond: int | None = INTENSITIES
) -> DataSet:
    """Combine named arrays into one data set; their first dimension is rows.

    Large memory maps stay on disk, and large sparse matrices, in SciPy's CSR format, stay sparse.

    With `gaps`, NaN marks a missing value.
    """
    first_name, first = next(iter(arrays.items()))
    for own_name, array in arrays.items():
        _check_array(array, own_name)
        if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
            kinds = [f"{own.dtype.name} of shape {own.shape[1:]}" for own in (array, first)]
            raise DataError(f"{own_name}: has rows of {kinds[0]}, but {first_name} has {kinds[1]}")
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


def _notes_on_text(data_set: DataSet, layout: TextLayout) -> tuple[str, ...]:
    """Notes on how a text file was interpreted."""
    if layout.n_index and data_set.name.endswith(".h5ad"):
        return (f"{data_set.name}: matrix X, with var_names as columns and obs_names as row names",)
    if layout.n_index:
        columns = "first column" if layout.n_index == 1 else f"first {layout.n_index} columns"
        return (f"{data_set.name}: {columns} used as row names; to use it as data, name it in the header",)
    n = data_set.rows.shape[1]
    if layout.names is None and n > 3 and np.array_equal(data_set.rows[:1], [range(n)]):
        return (f"{data_set.name}: first line 0 to {n - 1} read as data; if it is a header, give the columns names",)
    return ()


def _as_floats(rows: Array) -> Array:
    double = rows.dtype.kind == "f" and rows.dtype.itemsize >= 8
    with np.errstate(over="ignore", invalid="ignore"):  # what is no double is found when values are looked at
        return rows.astype(np.float64 if double else np.float32, copy=False)


def _check_array(array: Any, name: str) -> None:
    if array.dtype.kind in "SU":
        raise DataError(f"{name}: holds {array.dtype.name}, not numbers; encode text as whole numbers, 0, 1, 2, …")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: holds {array.dtype.name}, not numbers")
    if array.ndim < 2:
        raise DataError(f"{name}: has shape {array.shape}; expected at least two dimensions, with rows first")
    if 0 in array.shape:
        raise DataError(f"{name}: has shape {array.shape}; expected at least one row and one column")


def _check_finite(rows: LazyRows, gaps: bool) -> None:
    for first, part in rows.parts():
        bad = np.argwhere(np.isinf(part) if gaps else ~np.isfinite(part))
        if len(bad):
            row, column = bad[0]
            name, own_row = rows.place(first + int(row))
            value = part[row, column]
            rule = "expected finite values" + (", or NaN for missing ones" if gaps else "")
            rule = f"{rule}; {COMPLETE_ROWS}" if np.isnan(value) else rule
            raise DataError(f"{name}: row {own_row}, column {column} is {value}; {rule}")


def _square(n: int) -> tuple[int, int] | None:
    side = math.isqrt(n)
    return (side, side) if side > 3 and side * side == n else None


def _digits() -> DataSet:
    from sklearn.datasets import load_digits

    return as_rows({"digits": load_digits().images.astype(np.float32) / 16}, "digits")


def digit_labels() -> Array:  # (1797,)
    """Digit shown by each row of `digits`."""
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target)


def mnist_labels(path: Path | None = None) -> Array:  # (60000,)
    """Digit shown by each row of `mnist`, from a file or downloaded once."""
    if path is None:
        return from_idx(*_download("labels")).astype(np.int64)
    try:
        return from_idx(decompressed(path.read_bytes(), path), str(path)).astype(np.int64)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _mnist(name: str) -> DataSet:
    data_set = as_rows({name: from_idx(*_download("train" if name == "mnist" else "test"))}, name)
    return replace(data_set, notes=())  # rows of this data set are always in [0, 1]


def _download(part: str) -> tuple[bytes, str]:
    """Content and path of an MNIST file."""
    try:
        import pooch
    except ImportError:
        raise DataError("downloading mnist requires pooch; use: pip install pooch") from None
    name, digest = MNIST[part]
    try:
        path = pooch.retrieve(MNIST_FOLDER + name, known_hash=None, fname=name, path=pooch.os_cache("tapmachine"))
    except Exception as error:
        raise DataError(f"mnist could not be downloaded ({error}); give the path of {name} instead") from None
    content = gzip.decompress(Path(path).read_bytes())
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path}: is corrupt; delete it and try again")
    return content, path
