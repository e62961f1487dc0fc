"""The estimator on tables: DataFrames in and out, and the prediction of one column from the others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tapmachine.apps.estimator_input import dense_in_parts
from tapmachine.apps.estimator_uses import Array, TrainedMachine
from tapmachine.data.columns import Schema
from tapmachine.data.frames import (
    FrameType,
    from_columns,
    from_numbers,
    has_float_columns_only,
    library_of,
    series_of,
    to_columns,
)
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.weight import log_weight
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.solver import TAP

CANDIDATE_ROWS = 2**16  # rows that are weighed at a time


def _has_schema(estimator: "TableMachine") -> bool:
    return getattr(estimator, "schema_", None) is not None


class TableMachine(TrainedMachine):
    """The methods of an estimator on DataFrames, which return DataFrames with the index and columns of their input.

    Attributes:
        schema_: The kinds of the columns, if it was fitted to a DataFrame with other columns than floats.
    """

    columns: dict[str, str] | None
    visible: Any
    binarize: float | None
    interval: Any
    schema_: Schema | None
    _frame: FrameType | None

    # ----- DataFrames in

    def _array(self, X: Any, reset: bool = False, gaps: bool = False) -> Array:
        """Rows of numbers: those of a table encoded by its schema, others checked as usual."""
        if reset:
            self._take_columns(X)
        if not _has_schema(self):
            return super()._array(X, reset, gaps)
        return self._encoded(X, gaps, reset=reset)

    def _sparse(self, X: Any, reset: bool = False) -> Any:
        matrix = super()._sparse(X, reset)
        if reset and matrix is not None:
            self._take_columns(X)
        return matrix

    def _take_columns(self, X: Any) -> None:
        """Remember the columns of a DataFrame, and that there are none of anything else."""
        is_frame = library_of(X) is not None
        self.schema_ = self._new_schema(X) if is_frame else None
        self._frame = FrameType.of(X) if is_frame else None
        if self.columns is not None and self.schema_ is None:
            raise ValueError("columns is given, but X has no named columns; pass a DataFrame")

    def _new_schema(self, X: Any) -> Schema | None:
        """The schema of a table, unless its columns are all floats or one unit type was asked for."""
        is_numeric = has_float_columns_only(X) and self.columns is None
        has_unit_type = self.visible is None or callable(self.visible) or self.visible != "auto"
        if is_numeric or has_unit_type or self.binarize is not None or self.interval is not None:
            if self.columns is not None:
                raise ValueError("columns cannot be combined with visible, binarize or interval")
            return None
        return Schema.infer(to_columns(X), self.columns)

    def _encoded(self, X: Any, gaps: bool, reset: bool = False, optional: Sequence[str] = ()) -> Array:
        schema = self._schema()
        if library_of(X) is None:
            raise ValueError(
                f"X is a {type(X).__name__}; the machine was fitted to a DataFrame, expected one with the columns "
                f"{', '.join(map(repr, schema.names[:5]))}{', …' if len(schema.names) > 5 else ''}"
            )
        if len(X) == 0:
            raise ValueError("X has no rows (n_samples=0)")
        array = schema.encode(to_columns(X), optional)
        if reset:
            self.feature_names_in_ = np.array(schema.names, dtype=object)
            self.n_features_in_ = len(schema.names)
        if not gaps and np.isnan(array).any():
            for name, where in schema.components.items():
                missing = np.flatnonzero(np.isnan(array[:, where]).any(1))
                if len(missing):
                    raise ValueError(f"column {name!r} has a gap in row {missing[0]}; expected complete rows")
        return array

    def _schema(self) -> Schema:
        schema = self.schema_
        assert schema is not None
        return schema

    # ----- DataFrames out

    def _as_frame(self, rows: Any, like: Any = None, keep: bool = False) -> Any:
        """Rows as a DataFrame of the training data's type, or of that of the input; with `keep`, cells that it has.

        Arrays stay arrays if the machine was fitted to an array, and where the input is one.
        """
        library = library_of(like)
        if self._frame is None or (like is not None and library is None):
            return rows
        index = like.index if library == "pandas" else None
        library = library or self._frame.library
        if not _has_schema(self):
            dtypes = self._frame.dtypes if library == self._frame.library else ()
            return from_numbers(rows, self._frame.names, library, index, dtypes)
        decoded = self._schema().decode(rows)
        if keep:
            decoded = [own.filled_from(other) for own, other in zip(to_columns(like), decoded, strict=True)]
        return from_columns(decoded, library, index)

    def inverse_transform(self, X: Any) -> Any:
        """Means of the visible units given values of the (last layer of) hidden ones, (n_samples, n_features).

        For categories, the most probable one. A DataFrame, if the machine was fitted to one.
        """
        rows = super().inverse_transform(X)
        result = self._as_frame(rows)
        if library_of(X) == "pandas" and library_of(result) == "pandas":
            result.index = X.index
        return result

    @dense_in_parts
    def free_energy(self, X: Any) -> Any:
        """Free energy F(x) of each row, (n_samples,): ln P(x) = −F(x) − ln Z.

        With several hidden layers it is that of TAP; NaN for rows where TAP does not converge.
        """
        values = super().free_energy(X)
        values = values + self._schema().log_scale(self._array(X, gaps=True)) if _has_schema(self) else values
        return self._as_series(values, "free_energy", X)

    @dense_in_parts
    def score_samples(self, X: Any) -> Any:
        """Log-likelihood ln P(x) of each row in nats, (n_samples,); a Series with the index of a DataFrame.

        ln Z is exact if the machine is small enough to be enumerated quickly (16 binary hidden units); otherwise it is
        estimated by annealed importance sampling, with more and more temperatures until its standard error is below
        0.1 nats. `score_method_` and `score_error_` hold the method and the error. It is computed once for a fitted
        machine. With several hidden layers, the weight of each row is enumerated or annealed as well.

        Warns:
            LikelihoodWarning: If the standard error of ln Z stays above 0.1 nats.
        """
        values = super().score_samples(X)
        values = values - self._schema().log_scale(self._array(X, gaps=True)) if _has_schema(self) else values
        return self._as_series(values, "log_likelihood", X)

    def _as_series(self, values: Array, name: str, like: Any) -> Any:
        library = library_of(like)
        return values if library is None else series_of(values, name, library, getattr(like, "index", None))

    def sample(self, n_samples: int = 1, n_sweeps: int = 200, random_state: Any = None) -> Any:
        """Draw samples, (n_samples, n_features), by Gibbs chains that start from rows of the training data.

        Samples of the default machine of a real-valued table, which is a mixture of Gaussians, are exact and
        independent. After `fit` with a DataFrame, samples are one with the same columns and types.

        Args:
            n_samples: Number of samples.
            n_sweeps: Gibbs sweeps of each chain.
            random_state: Random seed. By default every call draws new samples; after `fit` with the same
                `random_state`, the same sequence of calls gives the same samples.
        """
        return self._as_frame(super().sample(n_samples, n_sweeps, random_state))

    @dense_in_parts
    def denoise(self, X: Any, channel: Channel, data: Any = None, return_std: bool = False) -> Any:
        """Denoise rows: posterior means of the clean ones, (n_samples, n_features), in the type of X.

        For categories, the most probable one; integers are rounded. Rows without a converged solution are reported by a
        warning; `tapmachine.denoise(machine_, …)` has more results.

        Args:
            X: Noisy rows; NaN for values that were not observed.
            channel: The noise, such as `BinarySymmetric(0.1)` or `GaussianNoise(0.2)`; that of a table with a schema
                acts on encoded rows, in which real columns have a standard deviation of 1.
            data: Examples, such as the training data, which help if the noise is strong.
            return_std: Whether to return standard deviations as well.
        """
        mean, std = super().denoise(X, channel, data, return_std=True)
        mean = self._as_frame(mean, X, keep=isinstance(channel, Missing) and _has_schema(self))
        if not return_std:
            return mean
        std = self._schema().spread(std**2) if _has_schema(self) else std
        library = library_of(X)
        if self._frame is not None and library is not None:
            std = from_numbers(std, self._frame.names, library, getattr(X, "index", None))
        return mean, std

    # ----- one column from the others

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, column: str) -> Any:
        """Probabilities of the values of a categorical or binary column given the other columns.

        They are exact with one hidden layer: the weights of the row with each value of the column, normalized. Rows
        with gaps in other columns have them summed over by TAP.

        Args:
            X: DataFrame with the other columns; if the column itself is there, it is ignored.
            column: Name of the column.

        Returns:
            A DataFrame with a column for each value.
        """
        check_is_fitted(self)
        target = self._target(column)
        if target.kind not in ("binary", "categorical"):
            raise ValueError(f"column {column!r} is {target.kind}, which has no probabilities of values; use predict")
        rows = self._without(X, column)
        probabilities = self._probabilities(rows, column)
        names = [str(value) for value in target.categories]
        library = library_of(X) or "pandas"
        return from_numbers(probabilities, names, library, getattr(X, "index", None))

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict(self, X: Any, column: str) -> Any:
        """Predict a column from the others: the most probable category, or the mean of numbers.

        Args:
            X: DataFrame with the other columns; if the column itself is there, it is ignored.
            column: Name of the column.

        Returns:
            A Series of the column's type.
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
        """Encoded rows in which a column is missing."""
        if library_of(X) is not None and column in X.columns:
            X = X.drop(columns=column) if library_of(X) == "pandas" else X.drop(column)
        return self._encoded(X, gaps=True, optional=[column])

    def _probabilities(self, rows: Array, column: str) -> Array:  # (N, n_components) -> (N, q)
        """P(value of the column | the other columns)."""
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
        """ln weight of each row with each state of some components; the difference is that of ln P."""
        candidates = np.repeat(rows, len(states), 0)
        candidates[:, where] = np.tile(states, (len(rows), 1))
        x = self._states(candidates)
        deep = len(self._double.layers) > 2
        weights = clamped_log_weight(self._double, x, TAP()) if deep else log_weight(self._double, x)
        return weights.view(len(rows), len(states))

    def _posterior_means(self, rows: Array) -> Array:
        """Posterior means of encoded rows with gaps."""
        y = self._rows_with_gaps(rows).to(self._double.device)
        return denoise(self._double, y, Missing()).mean.cpu().numpy()
