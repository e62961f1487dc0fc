"""Functions that read and write Parquet files and read AnnData files, with libraries that are imported on demand."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tapmachine.data.errors import DataError
from tapmachine.data.frames import from_columns, has_float_columns_only, to_columns
from tapmachine.data.raw_columns import RawColumn
from tapmachine.data.text import WHOLE, TextLayout

Array = np.ndarray[Any, Any]


def from_parquet(path: Path, as_table: bool) -> tuple[Array | list[RawColumn], TextLayout]:
    """Read the columns of a Parquet file, or an array if all columns are floats and `as_table` is False.

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
    if has_float_columns_only(frame) and not as_table:
        return frame.to_numpy(), layout
    try:
        return to_columns(frame), layout
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


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


def to_parquet(columns: Sequence[RawColumn], layout: TextLayout | None) -> bytes:
    """Return the content of a Parquet file that contains the given columns and the index columns of a layout."""
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError("Parquet files require pandas and pyarrow: pip install pandas pyarrow") from None
    index = None
    if layout is not None and layout.index:
        labels = [[int(row[place]) if _are_whole(layout, place) else row[place] for row in layout.index]
                  for place in range(layout.n_index)]  # fmt: skip
        names = [name or None for name in (layout.names or ("",) * layout.n_index)[: layout.n_index]]
        index = pandas.MultiIndex.from_arrays(labels, names=names)
        index = index.get_level_values(0) if layout.n_index == 1 else index
    content = io.BytesIO()
    from_columns(columns, "pandas", index).to_parquet(content, engine="pyarrow")
    return content.getvalue()


def _are_whole(layout: TextLayout, place: int) -> bool:
    return all(WHOLE.fullmatch(row[place]) for row in layout.index)
