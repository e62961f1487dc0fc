"""Readers for data files, selected by format.

Supported formats are .npy, .npz, .csv, Parquet, AnnData and idx files, and directories of .npy files. Code in data
files is never executed. Arrays are read by `arrays.py` and text files by `text.py`. Parquet and AnnData files are read
with libraries that are imported on demand.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.arrays import (
    IDX_TYPES,
    NPY,
    Array,
    check_expansion,
    check_shape,
    decompressed,
    from_idx,
    from_npy,
    from_npz,
    map_npy,
)
from tapmachine.data.errors import DataError
from tapmachine.data.files import check_regular
from tapmachine.data.text import ALIGNMENT, TextLayout, from_csv

CONVERSIONS = {  # hints for converting the files of other software
    (".fasta", ".fa", ".faa", ".fna", ".a2m", ".a3m", ".sto"): ALIGNMENT,
    (".xlsx", ".xls"): "is a spreadsheet; export it as .csv",
}


def read_folder(folder: Path) -> dict[str, Array]:
    """Memory-map the .npy files of a directory and return the arrays by path, sorted by name."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not paths:
        raise DataError(f"{folder}: the directory is empty; expected .npy files")
    for path in paths:
        if path.suffix != ".npy" or path.is_dir():
            raise DataError(f"{path}: not a .npy file; expected only .npy files in a data directory")
    return {str(path): map_npy(path) for path in paths}


def read_file(
    path: Path, key: str = "", as_table: bool = False, texts: Collection[str] = ()
) -> tuple[Any, TextLayout | None]:
    """Read an array, a sparse matrix or the columns of a table from a file.

    Uncompressed .npy files are memory-mapped.

    Args:
        path: Path to the file.
        key: Name of the array in an .npz file, or an empty string if there is only one array.
        as_table: Whether to return a list of columns if the columns have names (default: only if there is text).
        texts: Names of columns to read as text.

    Returns:
        The content of the file, and the layout of a table (None for arrays).
    """
    size, name = check_regular(path), path.name.lower()
    if name.endswith(".npz"):
        return from_npz(path, key), None
    if name.endswith(".h5ad"):
        return from_h5ad(path, size)
    if name.endswith(".parquet"):
        return from_parquet(path, size, as_table)
    with path.open("rb") as file:
        content = file.read(len(NPY))
        if content == NPY:
            return map_npy(path), None
        content += file.read()
    if name.endswith(".gz"):
        content = decompressed(content, path)
    if content.startswith(NPY):
        return from_npy(content, path), None
    if len(content) >= 4 and content[:2] == b"\0\0" and content[2] in IDX_TYPES:
        return from_idx(content, str(path)), None
    if is_text(name):
        return from_csv(content, path, as_table, texts)
    hint = next((hint for suffixes, hint in CONVERSIONS.items() if name.endswith(suffixes)), None)
    raise DataError(f"{path}: {hint or 'unknown format; expected a .npy, .npz, .csv, .parquet, .h5ad or idx file'}")


def is_text(name: str) -> bool:
    """Return whether a file with the given name is read as text."""
    return name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


@contextmanager
def _parsing(path: Path, kind: str) -> Iterator[None]:
    """Describe errors of another library, which may raise any exception for a damaged file."""
    try:
        yield
    except (MemoryError, DataError):
        raise
    except Exception as error:
        raise DataError(f"{path}: not {kind}: {' '.join(str(error).split()) or type(error).__name__}") from None


def from_parquet(path: Path, size: int, as_table: bool) -> tuple[Any, TextLayout]:
    """Read a Parquet file as a DataFrame, or as an array if all columns are floats and `as_table` is False.

    An index saved by pandas is not part of the data.
    """
    try:
        import pandas
        import pyarrow  # noqa: F401
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path}: Parquet files require pandas and pyarrow: pip install pandas pyarrow") from None
    with _parsing(path, "a Parquet file"):
        with ParquetFile(path) as file:
            check_expansion(8 * file.metadata.num_rows * file.metadata.num_columns, size, path)
            for name, count in Counter(file.schema_arrow.names).items():
                if count > 1:
                    raise DataError(f"{path}: column {name!r} occurs twice; use unique column names")
        frame = pandas.read_parquet(path, engine="pyarrow")
    names = tuple(str(name) for name in frame.columns)
    layout = TextLayout(names=names)
    if not isinstance(frame.index, pandas.RangeIndex):
        index = frame.index.to_frame().astype(str)
        labels = tuple("" if name is None else str(name) for name in frame.index.names)
        layout = TextLayout(names=labels + names, index=tuple(map(tuple, index.to_numpy().tolist())))
    if not names or not len(frame):
        raise DataError(f"{path}: the shape is {frame.shape}; expected at least one row and one column")
    are_floats = all(isinstance(dtype, np.dtype) and dtype.kind == "f" for dtype in frame.dtypes)
    return frame.to_numpy() if are_floats and not as_table else frame, layout


def _bytes_of(part: Any) -> int:
    """Return the number of bytes that an HDF5 data set declares."""
    return int(math.prod(part.shape or ()) * part.dtype.itemsize)


def from_h5ad(path: Path, size: int) -> tuple[Any, TextLayout]:
    """Read the matrix X of an AnnData file, dense or in SciPy's CSR format, with column and row names."""
    try:
        import anndata
        import h5py  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(f"{path}: AnnData files require anndata: pip install anndata") from None
    with _parsing(path, "an AnnData file"):
        sizes: list[int] = []
        with h5py.File(path) as file:
            file.visititems(lambda _, part: sizes.append(_bytes_of(part) if isinstance(part, h5py.Dataset) else 0))
        check_expansion(sum(sizes), size, path)
        cells = anndata.read_h5ad(path)
    if cells.X is None:
        raise DataError(f"{path}: the file has no matrix X; store the data in adata.X")
    matrix = cells.X.tocsr() if hasattr(cells.X, "tocsr") else np.asarray(cells.X)
    if hasattr(matrix, "tocsr"):
        check_shape(matrix.shape, matrix.dtype.itemsize, path)
    names, rows = (tuple(map(str, labels)) for labels in (cells.var_names, cells.obs_names))
    note = f"{path}: matrix X, with var_names as columns and obs_names as row names"
    return matrix, TextLayout(names=("", *names), index=tuple((row,) for row in rows), notes=(note,))
