"""Encoding of tables as rows of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapmachine.data.columns import RawColumn
from tapmachine.data.errors import DataError
from tapmachine.data.sources import INTENSITIES, DataSet, read
from tapmachine.data.text import COMPLETE_ROWS
from tapmachine.tables.frames import library_of, to_columns
from tapmachine.tables.schema import Schema


@dataclass(frozen=True)
class EncodedData(DataSet):
    """Data set whose tables are encoded as rows of numbers.

    Attributes:
        schema: Schema with which the rows of a table were encoded; None for other data.
        columns: Columns of the table before encoding.
    """

    schema: Schema | None = None
    columns: tuple[RawColumn, ...] = ()


def read_rows(
    source: str | Path,
    schema: Schema | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    gaps: bool = False,
    optional: Sequence[str] = (),
    scale_beyond: int | None = INTENSITIES,
) -> EncodedData:
    """Read rows from a named data set, a file or a directory of files, and encode tables.

    Args:
        source: Data source; see `tapmachine.data.sources.read`.
        schema: Schema that the table must have. By default, the schema of a .csv or .parquet file with columns other
            than numbers is inferred.
        kinds: Mapping from column names to kinds (real, count, binary or categorical) that override the inferred kinds.
        gaps: Whether missing values are allowed (default: False).
        optional: Columns of the schema that may be missing.
        scale_beyond: Threshold for scaling bytes (uint8).

    Returns:
        The rows, with the schema and the columns of a table.

    Raises:
        DataError: If the data cannot be read or do not match the schema.
    """
    texts = () if schema is None else schema.texts
    found = read(source, gaps, scale_beyond, schema is not None or bool(kinds), texts)
    if found.table is None:
        return EncodedData(**vars(found))
    try:
        columns = to_columns(found.table) if library_of(found.table) else list(found.table)
        own = schema or Schema.infer(columns, kinds)
        rows = own.encode(columns, optional)
    except ValueError as error:
        raise DataError(f"{found.name}: {error}") from None
    for column in [] if gaps else columns:
        if column.gaps.any():
            row = int(column.gaps.argmax())
            raise DataError(f"{found.name}: row {row}, column {column.name!r} is empty; {COMPLETE_ROWS}")
    notes = tuple(f"{found.name}: {line}" for line in own.describe().splitlines()) if schema is None else ()
    return EncodedData(**(vars(found) | {"rows": rows, "notes": notes}), schema=own, columns=tuple(columns))
