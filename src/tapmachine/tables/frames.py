"""Conversion between DataFrames of pandas or polars and lists of columns; both libraries are imported on demand."""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapmachine.data.columns import NUMBERS, RawColumn, check_digits, check_unique
from tapmachine.data.errors import DataError
from tapmachine.data.rows import unmasked
from tapmachine.data.text import TextLayout

Array = np.ndarray[Any, Any]

POLARS_TYPES = {"Boolean": "bool", "Float32": "float", "Float64": "float", "String": "text"}


def library_of(table: Any) -> str | None:
    """Return the library of a DataFrame, "pandas" or "polars", or None for other objects."""
    for name in ("pandas", "polars"):
        module = sys.modules.get(name)  # a DataFrame exists only if its library was imported
        if module is not None and isinstance(table, module.DataFrame):
            return name
    return None


def matrix_and_names(X: Any) -> tuple[Any, list[str] | None]:
    """Return the matrix and the column names of an AnnData object, or other rows without names.

    Masked values of arrays become NaN.

    Raises:
        ValueError: If the rows are dates, or an AnnData object without a matrix.
    """
    module = sys.modules.get("anndata")  # an AnnData object exists only if anndata was imported
    if module is None or not isinstance(X, module.AnnData):
        if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
            raise ValueError(
                f"X contains dates ({X.dtype}); convert them to numbers, such as days since the first date"
            )
        return unmasked(X), None
    if X.X is None:
        raise ValueError("X is an AnnData object without a matrix; set X.X")
    return (X.to_memory() if X.isbacked else X).X, [str(name) for name in X.var_names]


@dataclass(frozen=True)
class Frame:
    """A DataFrame that was converted to columns, with the library and the index that results have as well.

    Attributes:
        columns: The columns.
        library: Name of the library, "pandas" or "polars".
        index: Index of a pandas DataFrame.
    """

    columns: tuple[RawColumn, ...]
    library: str
    index: Any = None

    @classmethod
    def of(cls, frame: Any) -> "Frame":
        """Convert a DataFrame.

        Raises:
            ValueError: If a column name is not a string or occurs twice, if a column mixes types, or if it contains
                values other than numbers, text, booleans or categories.
        """
        library, names = library_of(frame) or "pandas", list(frame.columns)
        have_no_names = not any(isinstance(name, str) for name in names)  # numbers, as in DataFrame(array)
        for name in names:
            if not isinstance(name, str) and not have_no_names:
                raise ValueError(f"column name {name!r} is not a string; use X.columns = X.columns.astype(str)")
        check_unique(names)
        make = _from_polars if library == "polars" else _from_pandas
        columns = tuple(make(str(name), frame[name]) for name in names)
        return cls(columns, library, getattr(frame, "index", None))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    def table(self, columns: Sequence[RawColumn]) -> Any:
        """Return other columns as a DataFrame with this library and index."""
        return from_columns(columns, self.library, self.index)

    def numbers(self, values: Array, names: Sequence[Any]) -> Any:  # (N, n)
        """Return an array of numbers as a DataFrame with this library and index."""
        if self.library == "polars":
            import polars

            return polars.DataFrame(np.ascontiguousarray(values), schema=[str(name) for name in names], orient="row")
        import pandas

        return pandas.DataFrame(values, index=self.index, columns=list(names))

    def series(self, values: Array, name: str) -> Any:  # (N,)
        """Return an array of numbers as a Series with this library and index."""
        if self.library == "polars":
            import polars

            return polars.Series(name, values)
        import pandas

        return pandas.Series(values, index=self.index, name=name)


def _from_pandas(name: str, series: Any) -> RawColumn:
    dtype, gaps = series.dtype, series.isna().to_numpy(dtype=bool)
    word = str(dtype)
    if word == "category":
        values = np.empty(len(series), object)
        values[:] = [None if gap else value for value, gap in zip(series.tolist(), gaps, strict=True)]
        categories = tuple(dtype.categories.tolist())
        _check_categories(name, categories)
        return RawColumn(name, "category", values, word, categories, bool(dtype.ordered))
    kind = getattr(dtype, "kind", "O")
    if kind in "biuf":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        if kind in "iu":
            check_digits(name, numbers)
        return RawColumn(name, {"b": "bool", "f": "float"}.get(kind, "int"), numbers, word)
    if kind in "mMc":
        raise ValueError(f"column {name!r} contains {word}; convert it to numbers, or drop it")
    return RawColumn.of(name, [None if gap else value for value, gap in zip(series.tolist(), gaps, strict=True)], word)


def _from_polars(name: str, series: Any) -> RawColumn:
    word = str(series.dtype)
    values = series.to_list()
    if word.startswith(("Categorical", "Enum")):
        objects = np.empty(len(values), object)
        objects[:] = values
        seen = list(series.dtype.categories) if word.startswith("Enum") else sorted({*values} - {None})
        return RawColumn(name, "category", objects, word.partition("(")[0], tuple(seen), word.startswith("Enum"))
    kind = POLARS_TYPES.get(word, "int" if word.startswith(("Int", "UInt")) else "")
    if kind in NUMBERS:
        return RawColumn(name, kind, np.array([np.nan if v is None else float(v) for v in values]), word)
    if kind != "text" and word not in ("Object", "Null"):
        raise ValueError(f"column {name!r} contains {word}; convert it to numbers or text, or drop it")
    return RawColumn.of(name, values, word)


def _check_categories(name: str, categories: Sequence[Any]) -> None:
    for value in categories:
        if not isinstance(value, str | int | float | bool):
            raise ValueError(
                f"column {name!r} has the category {value!r}; expected only text or only numbers as categories"
            )


def from_columns(columns: Sequence[RawColumn], library: str, index: Any = None) -> Any:
    """Create a DataFrame from columns. Integers and booleans with missing values get a nullable dtype."""
    if library == "polars":
        import polars

        return polars.DataFrame([_to_polars(column) for column in columns])
    import pandas

    return pandas.DataFrame({column.name: _to_pandas(column, index) for column in columns}, index=index)


def _to_pandas(column: RawColumn, index: Any) -> Any:
    import pandas

    gaps, dtype = column.gaps, column.dtype
    if column.type == "category":
        known = {value: code for code, value in enumerate(column.categories)}
        codes = [-1 if gap else known[value] for value, gap in zip(column.values.tolist(), gaps, strict=True)]
        values = pandas.Categorical.from_codes(codes, categories=list(column.categories), ordered=column.ordered)
        return pandas.Series(values, index=index)
    if column.type in ("bool", "int"):
        convert = bool if column.type == "bool" else int
        cells = [None if gap else convert(v) for v, gap in zip(column.values.tolist(), gaps, strict=True)]
        if gaps.any() and dtype[:1].islower() and dtype != "object":  # NumPy integers and booleans cannot be missing
            dtype = {"bool": "boolean"}.get(dtype, dtype.replace("uint", "UInt").replace("int", "Int"))
        return pandas.Series(cells, index=index, dtype=dtype)
    return pandas.Series(column.values, index=index, dtype={"text": "object"}.get(dtype, dtype or None))


def _to_polars(column: RawColumn) -> Any:
    import polars

    gaps = column.gaps
    convert: Any = {"bool": bool, "int": int}.get(column.type, lambda value: value)
    cells = [None if gap else convert(value) for value, gap in zip(column.values.tolist(), gaps, strict=True)]
    if column.dtype == "Enum":
        return polars.Series(column.name, cells, dtype=polars.Enum(list(column.categories)))
    if column.dtype == "Object":
        return polars.Series(column.name, cells)
    return polars.Series(column.name, cells, dtype=getattr(polars, column.dtype))


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
    return all(row[place].removeprefix("-").isdecimal() for row in layout.index)
