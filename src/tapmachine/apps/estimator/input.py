"""Input of the estimator: validation by scikit-learn, row weights, and sparse matrices made dense in parts."""

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data
from torch import Tensor

from tapmachine.data.errors import DataWarning, warn
from tapmachine.data.rows import SPARSE_VALUES, LazyRows
from tapmachine.machine import BoltzmannMachine
from tapmachine.runs.data import repeat_rows, repeated
from tapmachine.tables.codec import Codec
from tapmachine.tables.frames import Frame, library_of, matrix_and_names

Array = np.ndarray[Any, Any]
Method = TypeVar("Method", bound=Callable[..., Any])

FLOATS = (np.float64, np.float32)


class Input(NamedTuple):
    """Rows that were passed to a method of a fitted estimator, converted once.

    Attributes:
        model: The estimator.
        rows: Encoded rows, with NaN for missing values.
        frame: The DataFrame, whose library and index results have; None for arrays, and for models fitted to arrays.
    """

    model: Any
    rows: Array
    frame: Frame | None

    @property
    def states(self) -> Tensor:
        """States of the visible units, with NaN for missing values.

        Values outside the interval of the training data are clipped with a warning.
        """
        return states(self.model, self.rows)

    def table(self, columns: Any) -> Any:
        """Return columns as a DataFrame, or an array as it is."""
        return columns if self.frame is None else self.frame.table(columns)

    def numbers(self, values: Array, names: Sequence[Any] | None = None) -> Any:  # (N, n)
        """Return numbers with the type of the rows."""
        return values if self.frame is None else self.frame.numbers(values, names or self.frame.names)

    def series(self, values: Array, name: str) -> Any:  # (N,)
        """Return one number per row as a Series, or as an array if the rows are an array."""
        return values if self.frame is None else self.frame.series(values, name)


def read(model: Any, X: Any, gaps: bool = True, without: str | None = None) -> Input:
    """Convert rows of any type for a fitted estimator.

    Args:
        model: Estimator with the attribute `_codec`.
        X: Rows of any supported type.
        gaps: Whether values may be missing (default: True).
        without: Name of a column whose values are missing; it may be absent (default: none).
    """
    check_is_fitted(model)
    frame = None if library_of(X) is None or model._codec.schema is None else Frame.of(X)
    if model._codec.is_table:
        return Input(model, _table(model._codec, X if frame is None else frame, gaps, without), frame)
    rows = plain_rows(model, X, gaps)
    return Input(model, rows.toarray() if issparse(rows) else rows, frame)


def _table(codec: Codec, X: Any, gaps: bool = True, without: str | None = None) -> Array:
    if not isinstance(X, Frame):
        names = codec.names or ()
        raise ValueError(
            f"X is a {type(X).__name__}; expected a DataFrame with the columns "
            f"{', '.join(map(repr, names[:5]))}{', …' if len(names) > 5 else ''}"
        )
    if without is not None:
        codec.column(without)
    return codec.encode(X, gaps, () if without is None else (without,))


def plain_rows(model: Any, X: Any, gaps: bool = True, reset: bool = False) -> Any:
    """Validate rows of numbers: a dense array, or a sparse matrix in CSR format. The names of columns are checked.

    Args:
        model: Estimator.
        X: Rows of any supported type.
        gaps: Whether values may be missing (default: True).
        reset: Whether X is training data, whose number and names of columns are stored (default: False).
    """
    matrix, names = matrix_and_names(X)
    finite = "allow-nan" if gaps else True
    options: dict[str, Any] = {"dtype": FLOATS, "accept_sparse": "csr", "ensure_all_finite": finite}
    if names is None:
        return validate_data(model, matrix, reset=reset, **options)
    rows = check_array(matrix, **options)
    if reset:
        model.n_features_in_, model.feature_names_in_ = len(names), np.array(names, dtype=object)
    elif len(names) != model.n_features_in_ or names != list(getattr(model, "feature_names_in_", names)):
        raise ValueError("the variables of X are not those of the training data; use X[:, model.feature_names_in_]")
    return rows


def states(model: Any, array: Array) -> Tensor:
    """Convert encoded rows to states of the visible units; see `Input`."""
    machine: BoltzmannMachine = model.machine_
    x: Tensor = model._codec.rows(array, machine.dtype).to(machine.device)
    units = machine.layers[0]
    if model._codec.is_coded or model.interval is not None or units.support.is_countable:
        return x
    lower, upper = (bound.detach() for bound in units.bounds())
    outside = (x < lower) | (x > upper)
    count = int(outside.sum())
    if not count:
        return x
    row, column = outside.nonzero()[0].tolist()
    warn(
        f"{count} value{'s' if count > 1 else ''} outside the interval of the training data clipped; the "
        f"first is {x[row, column]:g} in row {row}, column {column}. To widen the interval, fit with "
        "interval=(low, high)",
        DataWarning,
    )
    return torch.clamp(x, lower, upper)


def examples(model: Any, data: Any) -> Tensor | None:
    """Return complete example rows as states of the visible units."""
    return None if data is None else read(model, data, gaps=False).states


def as_rows(machine: BoltzmannMachine, states: Tensor, dtype: Any) -> Array:
    """Convert states or means of the visible units to encoded rows, with the most probable category as a number."""
    rows: Array = machine.layers[0].to_data(states).detach().cpu().numpy().astype(dtype, copy=False)
    return rows


def lazy_rows(matrix: Any) -> LazyRows:
    """Wrap a sparse matrix so that rows become dense when they are read. Raises ValueError for missing values."""
    gaps = np.flatnonzero(np.isnan(matrix.data))
    if len(gaps):
        row = int(np.searchsorted(matrix.indptr, gaps[0], side="right")) - 1
        raise ValueError(
            f"X[{row}, {matrix.indices[gaps[0]]}] of a sparse matrix is missing (NaN); missing values are supported in "
            "dense arrays only, such as X.toarray()"
        )
    return LazyRows({"X": matrix})


def weighted(x: Any, sample_weight: Any, rows: Any) -> tuple[Any, Tensor | None]:
    """Apply sample weights to the rows of a tensor or a sparse matrix.

    Returns:
        The rows and their weights. If all weights are small integers, rows are repeated and the weights are None.

    Raises:
        ValueError: If a weight is negative or not finite, or if all weights are 0.
    """
    if sample_weight is None:
        return x, None
    weights: Array = _check_sample_weight(sample_weight, rows, dtype=np.float64)
    if (weights < 0).any() or not weights.sum() > 0:
        first = f"weight {int(np.argmax(weights < 0))} is negative" if (weights < 0).any() else "all weights are 0"
        raise ValueError(f"sample_weight: {first}; expected non-negative weights, at least one of them positive")
    share = torch.from_numpy(weights)
    if isinstance(x, Tensor):
        return repeat_rows(x, share)
    times = repeated(share)
    return (x, share) if times is None else (x[times.numpy()], None)


def dense_in_parts(method: Method) -> Method:
    """Decorate an estimator method so that it processes sparse matrices in dense parts."""

    @wraps(method)
    def on_parts(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        matrix, _ = matrix_and_names(X)
        if not issparse(matrix) or matrix.shape[0] == 0:
            return method(self, X, *arguments, **options)
        matrix = plain_rows(self, X)
        step = max(1, SPARSE_VALUES // max(1, matrix.shape[1]))
        parts = (matrix[first : first + step].toarray() for first in range(0, matrix.shape[0], step))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # names were checked before
            results = [method(self, part, *arguments, **options) for part in parts]
        if isinstance(results[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))
        return np.concatenate(results)

    return on_parts  # type: ignore[return-value]
