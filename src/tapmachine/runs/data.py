"""Training rows and held-out rows of runs with their weights, and other data prepared in the same way."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import DataError, RunWarning, SettingsError, warn
from tapmachine.data.formats import read_file
from tapmachine.data.rows import LazyRows, Rows, has_gaps, held_in_memory, spaced
from tapmachine.data.sources import INTENSITIES
from tapmachine.runs.settings import Settings
from tapmachine.tables.codec import Codec, EncodedData, read_rows
from tapmachine.tables.schema import Schema
from tapmachine.training.gaps import fill_columns
from tapmachine.units.registry import UNIT_TYPES

ENOUGH_COMPLETE = 100  # number of complete rows above which incomplete rows are dropped, not filled in

MOST_REPEATED = 4  # rows are repeated if the number of rows grows by at most this factor

SomeRows = TypeVar("SomeRows", bound=Rows)


@dataclass(frozen=True)
class RunData(Generic[SomeRows]):
    """Training rows and held-out rows, with a digest of both.

    Attributes:
        name: Name of the data set.
        image_shape: Height and width, if the rows are images.
        digest: SHA-256 digest of the rows.
        train: Training rows.
        held_out: Held-out rows.
        scale_beyond: Argument of `data.sources.read` that scales other files in the same way.
        names: Names of the columns.
        notes: Notes on how the rows were processed.
        weights: Weights of the training rows; None for equal weights.
        schema: Schema with which the rows of a table with text were encoded.
        index: Indices of the training rows among all rows of the data, shape (N,); None for the first N rows.
        n_rows: Number of rows of the data, including any held-out fraction.
    """

    name: str
    image_shape: tuple[int, int] | None
    digest: str
    train: SomeRows
    held_out: SomeRows | None
    scale_beyond: int | None
    names: tuple[str, ...] | None
    notes: tuple[str, ...]
    weights: Tensor | None = None
    schema: Schema | None = None
    index: Tensor | None = None
    n_rows: int = 0

    def description(self) -> dict[str, Any]:
        """Return the description of the data that is saved with a machine."""
        return {
            "name": self.name,
            "n_rows": len(self.train),
            "image_shape": self.image_shape,
            "sha256": self.digest,
            "scale_beyond": self.scale_beyond,
            "columns": None if self.names is None else list(self.names),
        } | ({} if self.schema is None else {"schema": self.schema.to_dict()})

    def in_memory(self, gaps: bool = False) -> "RunData[Tensor]":
        """Return the data as tensors, with as many rows as fit into memory.

        If `gaps` is False, rows with missing values are dropped, or filled in if too few complete rows remain.
        """
        train = held_in_memory(self.train)
        held_out = None if self.held_out is None else held_in_memory(self.held_out)
        if len(train) < len(self.train):
            warn(
                f"{self.name}: data too large for memory; using {len(train)} evenly spaced rows of {len(self.train)}",
                RunWarning,
            )
        weights = self.weights if len(train) == len(self.train) else None
        index = None if len(train) == len(self.train) else spaced(torch.arange(len(self.train)), len(train))
        if not gaps:
            complete = complete_rows(train)
            if complete is not None:
                index = (torch.arange(len(train)) if index is None else index)[complete.cpu()]
            train, weights = self._without_gaps(train, weights)
            held_out = None if held_out is None else self._without_gaps(held_out, None)[0]
        return replace(self, train=train, held_out=held_out, weights=weights, index=index)  # type: ignore[return-value,arg-type]

    def _without_gaps(self, x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not has_gaps(x):
            return x, weights
        n_gappy, complete = int(x.isnan().any(1).sum()), complete_rows(x)
        if complete is not None:
            x, weights, done = x[complete], None if weights is None else weights[complete], "dropped"
        else:
            x, done = fill_columns(x), "filled in with values of the same columns"
        warn(f"{self.name}: {n_gappy} rows with missing values are {done}", RunWarning)
        return x, weights


def complete_rows(x: Tensor) -> Tensor | None:  # (N,), bool
    """Return a mask of the complete rows, or None if no values are missing or too few rows are complete."""
    if not has_gaps(x):
        return None
    complete = ~x.isnan().any(1)
    return complete if int(complete.sum()) >= min(ENOUGH_COMPLETE, len(x) // 2) else None


@contextmanager
def named(source: str) -> Iterator[None]:
    """Add the name of the data to error messages."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"{source}: {error}") from None


def bytes_scaled_beyond(settings: Settings) -> int | None:
    """Return the argument `scale_beyond` of `data.sources.read`: None if bytes are states, otherwise 1."""
    values = (*(settings.interval or ()), settings.binarize or 0.0)
    are_states = settings.visible != "auto" and UNIT_TYPES[settings.visible].raw_bytes
    return None if are_states or max(values) > 1 or settings.binarize == 1 else INTENSITIES


def codec_of(settings: Settings, schema: Schema | None = None, names: Sequence[str] | None = None) -> Codec:
    """Return the codec of data with the given settings."""
    names = None if names is None else tuple(names)
    return Codec(
        names,
        schema,
        is_table=schema is not None,
        binarize=settings.binarize,
        has_states=settings.visible == "categorical",
        dtype=settings.dtype,
    )


def read_data(settings: Settings) -> RunData[Rows]:
    """Read the training rows and held-out rows of a run."""
    return read_prepared(settings, bytes_scaled_beyond(settings))


def read_prepared(settings: Settings, scale_beyond: int | None, schema: Schema | None = None) -> RunData[Rows]:
    """Read data as `read_data` does, with the arguments `scale_beyond` and `schema` of `data.sources.read`."""
    columns = settings.column_kinds if schema is None else None
    source = read_rows(settings.data, schema, kinds=columns, gaps=True, scale_beyond=scale_beyond)
    with named(settings.data):
        x, notes = _prepared(settings, source)
    data = RunData[Rows](
        source.name,
        source.image_shape,
        source.digest(),
        x,
        None,
        source.scale_beyond,
        None if source.layout is None else source.layout.column_names(),
        notes,
        schema=source.schema,
        n_rows=len(x),
    )
    if settings.weights is not None:
        weights = read_weights(settings.weights, len(x))
        both = hashlib.sha256((data.digest + digest_of_weights(weights)).encode()).hexdigest()
        data = replace(data, digest=both, weights=weights)
    if settings.validation is None:
        return data
    if isinstance(settings.validation, str):
        other = read_rows(settings.validation, source.schema, gaps=True, scale_beyond=source.scale_beyond)
        with named(settings.validation):
            held_out, other_notes = _prepared(settings, other)
            if held_out.shape[1] != x.shape[1]:
                raise ValueError(f"has {held_out.shape[1]} columns, but {settings.data} has {x.shape[1]}")
        both = hashlib.sha256((data.digest + other.digest()).encode()).hexdigest()
        return replace(data, digest=both, held_out=held_out, notes=data.notes + other_notes)
    n_train = len(x) - round(settings.validation * len(x))
    if not 0 < n_train < len(x):
        raise SettingsError(
            f"validation is {settings.validation}; expected a fraction that leaves training rows and held-out rows "
            f"among the {len(x)} rows"
        )
    of_train = None if data.weights is None else data.weights[:n_train]
    return replace(data, train=_between(x, 0, n_train), held_out=_between(x, n_train, len(x)), weights=of_train)


def _prepared(settings: Settings, source: EncodedData) -> tuple[Rows, tuple[str, ...]]:
    """Prepare rows according to the settings. Returns the rows, with NaN for missing values, and notes."""
    rows, notes = source.rows, source.notes
    n_missing, n_columns = 0, rows.shape[1]
    if not isinstance(rows, LazyRows) and rows.dtype.kind == "f":
        schema = source.schema
        n_missing = int(np.isnan(rows).sum()) if schema is None else schema.n_gaps(rows)
        n_columns = rows.shape[1] if schema is None else len(schema.columns)
    if n_missing:
        n = len(rows) * n_columns
        notes = (*notes, f"{source.name}: {n_missing} of {n} values ({n_missing / n:.1%}) are missing")
    return codec_of(settings).training_rows(rows), notes


def _between(x: Rows, first: int, last: int) -> Rows:
    return x.between(first, last) if isinstance(x, LazyRows) else x[first:last]


# ----- row weights


def read_weights(path: str, n_rows: int) -> Tensor:  # (n_rows,), float64
    """Read row weights from a .npy file or a .csv file with one column.

    Raises:
        DataError: If the file cannot be read, or if it does not contain one valid weight per row.
    """
    try:
        values, _ = read_file(Path(path))
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: cannot read the weights: {error}") from None
    values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: the weights are {values.dtype.name}; expected numbers")
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.shape != (n_rows,):
        raise DataError(f"{path}: the shape is {values.shape}; expected {n_rows} weights in one column, one per row")
    weights = torch.from_numpy(values.astype(np.float64))
    bad = ~(torch.isfinite(weights) & (weights >= 0))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"{path}: the weight of row {row} is {weights[row]:g}; expected a non-negative, finite number")
    if not bool(weights.sum() > 0):
        raise DataError(f"{path}: all weights are 0; expected at least one positive weight")
    return weights


def digest_of_weights(weights: Tensor) -> str:
    """Return the SHA-256 digest of row weights."""
    return hashlib.sha256(weights.double().numpy().tobytes()).hexdigest()


def repeat_rows(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Repeat rows according to their weights if the weights are small integers.

    If rows are repeated, the returned weights are None, so that training is bit-identical to training on data that
    contain the repeated rows. Otherwise, the rows and weights are returned unchanged.
    """
    times = None if weights is None else repeated(weights)
    return (x, weights) if times is None else (x[times.to(x.device)], None)


def repeated(weights: Tensor) -> Tensor | None:  # (N,) -> (M,)
    """Return the indices of the repeated rows, or None if the weights are large or not integers."""
    total = float(weights.sum())
    if bool((weights == weights.round()).all()) and 0 < total <= MOST_REPEATED * len(weights):
        return torch.arange(len(weights)).repeat_interleave(weights.long().cpu())
    return None
