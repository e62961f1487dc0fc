"""Functions that read Parquet and AnnData files, with libraries that are imported on demand."""

from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.errors import DataError
from tapmachine.data.text import TextLayout

Array = np.ndarray[Any, Any]


def from_parquet(path: Path, as_table: bool) -> tuple[Any, TextLayout]:
    """Read a Parquet file as a DataFrame, or as an array if all columns are floats and `as_table` is False.

    An index saved by pandas is not part of the data.
    """
    try:
        import pandas
        import pyarrow
    except ImportError:
        raise DataError(f"{path}: Parquet files require pandas and pyarrow: pip install pandas pyarrow") from None
    try:
        frame = pandas.read_parquet(path, engine="pyarrow")
    except (pyarrow.ArrowException, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from None
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


def from_h5ad(path: Path) -> tuple[Any, TextLayout]:
    """Read the matrix X of an AnnData file, dense or in SciPy's CSR format, with column and row names."""
    try:
        import anndata
    except ImportError:
        raise DataError(f"{path}: AnnData files require anndata: pip install anndata") from None
    try:
        cells = anndata.read_h5ad(path)
    except (OSError, KeyError, ValueError, TypeError, anndata._io.utils.AnnDataReadError) as error:
        raise DataError(f"{path}: not an AnnData file: {' '.join(str(error).split())}") from None
    if cells.X is None:
        raise DataError(f"{path}: the file has no matrix X; store the data in adata.X")
    matrix = cells.X.tocsr() if hasattr(cells.X, "tocsr") else np.asarray(cells.X)
    names, rows = (tuple(map(str, labels)) for labels in (cells.var_names, cells.obs_names))
    return matrix, TextLayout(names=("", *names), index=tuple((row,) for row in rows))
