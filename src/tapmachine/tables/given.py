"""Rows with known values in some columns and NaN in all others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.columns import NUMBERS, RawColumn
from tapmachine.tables.schema import Schema


def given_row(values: Mapping[str, Any], names: Sequence[str], schema: Schema | None = None) -> Tensor:  # (n,)
    """Create a row with known values in some columns and NaN in all others.

    Args:
        values: Known values by column name. Numbers may be strings.
        names: Names of all columns.
        schema: Schema used to encode the row (default: no encoding).

    Raises:
        ValueError: If a column is unknown, or if a value does not match the kind of its column.

    Example:
        >>> from tapmachine.tables.given import given_row
        >>> given_row({"b": "2.5"}, ["a", "b"])
        tensor([   nan, 2.5000], dtype=torch.float64)
    """
    for name in values:
        if name not in names:
            raise ValueError(f"given has column {name!r}; expected one of {', '.join(map(repr, names))}")
    if schema is None:
        row = np.full(len(names), np.nan)
        for name, value in values.items():
            row[list(names).index(name)] = _number(name, value)
        return torch.from_numpy(row)
    columns = []
    for column in schema.columns:
        is_number = column.type in NUMBERS and isinstance(values.get(column.name), str)
        value = values.get(column.name)
        if is_number and column.type == "bool" and value in ("True", "False"):
            value = value == "True"
        elif is_number:
            value = _number(column.name, value)
        columns.append(RawColumn.of(column.name, [value], column.dtype))
    return torch.from_numpy(schema.encode(columns)[0])


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"given has the value {value!r} for column {name!r}; expected a number") from None
