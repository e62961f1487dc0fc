"""Input of the estimator: AnnData objects, row weights, and sparse matrices, which are made dense in parts."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from tapmachine.data.lazy_rows import SPARSE_VALUES, LazyRows
from tapmachine.runs.weights import repeated

Array = np.ndarray[Any, Any]
Method = TypeVar("Method", bound=Callable[..., Any])


def is_anndata(X: Any) -> bool:
    """Return whether X is an AnnData object."""
    module = sys.modules.get("anndata")  # an AnnData object exists only if anndata was imported
    return module is not None and isinstance(X, module.AnnData)


def matrix_of(X: Any) -> tuple[Any, list[str] | None]:
    """Return the matrix and the column names of an AnnData object. Return other input unchanged, without names."""
    if not is_anndata(X):
        return X, None
    if X.X is None:
        raise ValueError("X is an AnnData object without a matrix; set X.X")
    return (X.to_memory() if X.isbacked else X).X, [str(name) for name in X.var_names]


def check_names(names: list[str], fitted: Any) -> None:
    """Raise a ValueError if the column names of an AnnData object differ from those of the training data."""
    if len(names) != fitted.n_features_in_:
        raise ValueError(f"X has {len(names)} columns; expected {fitted.n_features_in_}, as in the training data")
    for place, (name, known) in enumerate(zip(names, getattr(fitted, "feature_names_in_", names), strict=True)):
        if name != known:
            raise ValueError(
                f"column {place} is {name!r}, but was {known!r} in training; use X[:, model.feature_names_in_]"
            )


@contextmanager
def columns_named(fitted: Any, X: Any) -> Iterator[None]:
    """Add the name of the first wrong column to scikit-learn's error about the order of columns."""
    try:
        yield
    except ValueError as error:
        known = list(getattr(fitted, "feature_names_in_", ()))
        names = list(getattr(X, "columns", ()))
        if "feature names should match" not in str(error) or sorted(map(str, names)) != sorted(known):
            raise
        place = next(place for place, (name, there) in enumerate(zip(names, known, strict=True)) if name != there)
        where = (
            f"Column {place} is {names[place]!r}, but was {known[place]!r} in training; use X[model.feature_names_in_]"
        )
        raise ValueError(f"{str(error).rstrip()} {where}") from None


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


def weighted_lazy_rows(matrix: Any, sample_weight: Any) -> tuple[LazyRows, Tensor | None]:
    """Apply sample weights to the rows of a sparse matrix.

    Returns:
        The rows and their weights. If all weights are small integers, rows are repeated and the weights are None.
    """
    if sample_weight is None:
        return lazy_rows(matrix), None
    weights = torch.from_numpy(checked_weights(sample_weight, matrix))
    times = repeated(weights)
    return (lazy_rows(matrix), weights) if times is None else (lazy_rows(matrix[times.numpy()]), None)


def checked_weights(sample_weight: Any, rows: Any) -> Array:
    """Return the sample weights as an array. Raises ValueError unless each row has a finite, non-negative weight."""
    weights: Array = _check_sample_weight(sample_weight, rows, dtype=np.float64)
    if (weights < 0).any() or not weights.sum() > 0:
        first = f"weight {int(np.argmax(weights < 0))} is negative" if (weights < 0).any() else "all weights are 0"
        raise ValueError(f"sample_weight: {first}; expected non-negative weights, at least one of them positive")
    return weights


def dense_in_parts(method: Method) -> Method:
    """Decorate an estimator method so that it processes sparse matrices in dense parts."""

    @wraps(method)
    def on_parts(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        matrix, _ = matrix_of(X)
        if not issparse(matrix) or matrix.shape[0] == 0:
            return method(self, X, *arguments, **options)
        parts = _dense_parts(self._sparse(X))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # names were checked before
            results = [method(self, part, *arguments, **options) for part in parts]
        if isinstance(results[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))
        return np.concatenate(results)

    return on_parts  # type: ignore[return-value]


def _dense_parts(matrix: Any) -> Iterator[Array]:
    step = max(1, SPARSE_VALUES // max(1, matrix.shape[1]))
    for first in range(0, matrix.shape[0], step):
        yield matrix[first : first + step].toarray()
