"""Estimator methods that predict one column of a table from the other columns."""

from typing import Any

import numpy as np
import torch
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tapmachine.apps.estimator.tables import TableMachine, _has_schema
from tapmachine.apps.estimator.uses import Array
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.weight import log_weight
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import Missing
from tapmachine.solver import TAP
from tapmachine.tables.frames import from_columns, from_numbers, library_of

CANDIDATE_ROWS = 2**16  # maximum number of rows per batch


class ColumnMachine(TableMachine):
    """Estimator methods that predict single columns of tables."""

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, column: str) -> Any:
        """Predict the probability of each value of a categorical or binary column given the other columns.

        With one hidden layer and no missing values in the other columns, the probabilities are exact. The probability
        of a value is the normalized weight of the row in which the column has this value. Missing values in other
        columns are marginalized with TAP.

        Args:
            X: DataFrame with the other columns. The predicted column is ignored if present.
            column: Name of the column to predict.

        Returns:
            A DataFrame with one row per row of X and one column per value.
        """
        check_is_fitted(self)
        target = self._target(column)
        if target.kind not in ("binary", "categorical"):
            raise ValueError(
                f"column {column!r} is {target.kind}; expected a categorical or binary column. For numbers, use predict"
            )
        rows = self._without(X, column)
        probabilities = self._probabilities(rows, column)
        names = [str(value) for value in target.categories]
        library = library_of(X) or "pandas"
        return from_numbers(probabilities, names, library, getattr(X, "index", None))

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict(self, X: Any, column: str) -> Any:
        """Predict a column from the other columns.

        The prediction is the most probable category of a categorical or binary column, and the posterior mean of a
        numeric column.

        Args:
            X: DataFrame with the other columns. The predicted column is ignored if present.
            column: Name of the column to predict.

        Returns:
            A Series of predictions with the data type of the column.
        """
        check_is_fitted(self)
        target, where = self._target(column), self._schema().components[column]
        rows = self._without(X, column)
        if target.kind in ("binary", "categorical"):
            chosen = self._probabilities(rows, column)
            encoded = 1 - chosen[:, :1] if target.kind == "binary" else chosen
        else:
            encoded = self._posterior_means(rows)[:, where]
        frame = from_columns([target.decode(encoded)], library_of(X) or "pandas", getattr(X, "index", None))
        return frame[column]

    def _target(self, column: str) -> Any:
        for candidate in self._schema().columns:
            if candidate.name == column:
                return candidate
        raise ValueError(f"column is {column!r}; expected one of {', '.join(map(repr, self._schema().names))}")

    def _without(self, X: Any, column: str) -> Array:
        """Encode rows and mark all values of one column as missing."""
        if library_of(X) is not None and column in X.columns:
            X = X.drop(columns=column) if library_of(X) == "pandas" else X.drop(column)
        return self._encoded(X, gaps=True, optional=[column])

    def _probabilities(self, rows: Array, column: str) -> Array:  # (N, n_components) -> (N, q)
        """Compute the probabilities of the values of a column given the other columns."""
        where = self._schema().components[column]
        is_binary = self._target(column).kind == "binary"
        states = np.array([[0.0], [1.0]]) if is_binary else np.eye(where.stop - where.start)
        if len(self._target(column).categories) == 1:  # a constant column
            return np.ones((len(rows), 1))
        others = np.delete(rows, np.r_[where], axis=1)
        has_gaps = np.isnan(others).any(1)
        result = np.empty((len(rows), len(states)))
        step = max(1, CANDIDATE_ROWS // len(states))
        complete = np.flatnonzero(~has_gaps)
        for first in range(0, len(complete), step):
            chosen = complete[first : first + step]
            result[chosen] = torch.softmax(self._log_weights(rows[chosen], where, states), 1).cpu().numpy()
        if has_gaps.any():
            mean = self._posterior_means(rows[has_gaps])[:, where]
            result[has_gaps] = np.concatenate((1 - mean, mean), 1) if is_binary else mean
        return result

    def _log_weights(self, rows: Array, where: slice, states: Array) -> Tensor:  # (N, n_components) -> (N, q)
        """Compute the log-weight of each row for each state of a column, which equals ln P up to a constant."""
        candidates = np.repeat(rows, len(states), 0)
        candidates[:, where] = np.tile(states, (len(rows), 1))
        x = self._states(candidates)
        deep = len(self._double.layers) > 2
        weights = clamped_log_weight(self._double, x, TAP()) if deep else log_weight(self._double, x)
        return weights.view(len(rows), len(states))

    def _posterior_means(self, rows: Array) -> Array:
        """Compute the posterior means of encoded rows with missing values."""
        y = self._rows_with_gaps(rows).to(self._double.device)
        return denoise(self._double, y, Missing()).mean.cpu().numpy()
