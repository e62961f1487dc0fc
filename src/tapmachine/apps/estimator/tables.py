"""Estimator methods that accept and return DataFrames."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from tapmachine.apps.estimator.input import dense_in_parts
from tapmachine.apps.estimator.uses import Array, TrainedMachine
from tapmachine.data.checks import check_count
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.runs.conditional import conditional_samples
from tapmachine.tables.frames import (
    FrameType,
    from_columns,
    from_numbers,
    has_float_columns_only,
    library_of,
    series_of,
    to_columns,
)
from tapmachine.tables.given import given_row
from tapmachine.tables.schema import Schema


def _has_schema(estimator: "TableMachine") -> bool:
    return getattr(estimator, "schema_", None) is not None


class TableMachine(TrainedMachine):
    """Estimator methods that accept DataFrames and return DataFrames with the same index and columns.

    Attributes:
        schema_: Kind of each column, for a DataFrame with columns other than floats; None otherwise.
    """

    columns: dict[str, str] | None
    visible: Any
    binarize: float | None
    interval: Any
    schema_: Schema | None
    _frame: FrameType | None

    # ----- DataFrames in

    def _array(self, X: Any, reset: bool = False, gaps: bool = False) -> Array:
        """Convert the input to an array of numbers. Tables with a schema are encoded."""
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
        """Store the schema and the column types if X is a DataFrame."""
        is_frame = library_of(X) is not None
        self.schema_ = self._new_schema(X) if is_frame else None
        self._frame = FrameType.of(X) if is_frame else None
        if self.columns is not None and self.schema_ is None:
            raise ValueError("columns is set, but X has no column names; pass X as a DataFrame")

    def _new_schema(self, X: Any) -> Schema | None:
        """Infer the schema of a table. Returns None if all columns are floats or the unit type is set explicitly."""
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
                f"X is a {type(X).__name__}; expected a DataFrame with the columns "
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
                    raise ValueError(f"column {name!r} is missing in row {missing[0]}; expected complete rows")
        return array

    def _schema(self) -> Schema:
        schema = self.schema_
        assert schema is not None
        return schema

    # ----- DataFrames out

    def _as_frame(self, rows: Any, like: Any = None, keep: bool = False) -> Any:
        """Convert rows to a DataFrame of the same type as the input `like` or, by default, the training data.

        If `keep` is true, observed cells of the input are kept unchanged. If the machine was fitted to an array or the
        input is an array, the rows are returned as an array.
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
        """Compute the means of the visible units given the hidden units of the last layer, (n_samples, n_features).

        For categorical columns, the most probable category is returned. The result is a DataFrame if the machine was
        fitted to a DataFrame.
        """
        rows = super().inverse_transform(X)
        result = self._as_frame(rows)
        if library_of(X) == "pandas" and library_of(result) == "pandas":
            result.index = X.index
        return result

    @dense_in_parts
    def free_energy(self, X: Any) -> Any:
        """Compute the free energy F(x) of each row, (n_samples,), defined by ln P(x) = −F(x) − ln Z.

        With several hidden layers, F(x) is approximated by TAP and is NaN for rows where TAP does not converge.
        """
        values = super().free_energy(X)
        values = values + self._schema().log_scale(self._array(X, gaps=True)) if _has_schema(self) else values
        return self._as_series(values, "free_energy", X)

    @dense_in_parts
    def score_samples(self, X: Any) -> Any:
        """Compute the log-likelihood ln P(x) of each row in nats, (n_samples,).

        The result is a Series if X is a DataFrame. ln Z is exact if the machine is small enough to be enumerated
        quickly (up to 16 binary hidden units). Otherwise, ln Z is estimated by annealed importance sampling, with as
        many temperatures as needed for a standard error below 0.1 nats. ln Z is computed once per fitted machine. The
        attributes `score_method_` and `score_error_` contain the method and the standard error. With several hidden
        layers, the weight of each row is also computed by enumeration or annealing.

        Warns:
            LikelihoodWarning: If the standard error of ln Z is still above 0.1 nats.
        """
        values = super().score_samples(X)
        values = values - self._schema().log_scale(self._array(X, gaps=True)) if _has_schema(self) else values
        return self._as_series(values, "log_likelihood", X)

    def _as_series(self, values: Array, name: str, like: Any) -> Any:
        library = library_of(like)
        return values if library is None else series_of(values, name, library, getattr(like, "index", None))

    def sample(
        self,
        n_samples: int = 1,
        n_sweeps: int = 200,
        random_state: Any = None,
        given: dict[Any, Any] | None = None,
    ) -> Any:
        """Draw samples, (n_samples, n_features), with Gibbs chains that start from rows of the training data.

        The default machine of a table is a mixture model, whose samples are exact and independent. After `fit` with a
        DataFrame, samples are returned as a DataFrame with the same columns and types.

        Args:
            n_samples: Number of samples (default: 1).
            n_sweeps: Number of Gibbs sweeps of each chain (default: 200).
            random_state: Random seed. By default, every call draws new samples. After `fit` with the same
                `random_state`, the same sequence of calls returns the same samples.
            given: Values at which some columns are fixed, by column name for DataFrames or by column index for arrays.
                All other columns are sampled.

        Example:
            >>> from sklearn.datasets import load_iris
            >>> from tapmachine import RBM
            >>> model = RBM(n_hidden=4).fit(load_iris().data)
            >>> model.sample(2, given={0: 5.1}, random_state=0)[:, 0]
            array([5.1, 5.1])
        """
        if given is None:
            return self._as_frame(super().sample(n_samples, n_sweeps, random_state))
        check_is_fitted(self)
        names: list[Any] = list(getattr(self, "feature_names_in_", range(self.n_features_in_)))
        row = given_row(given, names, self.schema_)
        starts, generator = self._chain_starts(check_count("n_samples", n_samples), random_state)
        drawn = conditional_samples(self._double, row.to(self._double.device), starts, n_sweeps, generator)
        drawn = self.machine_.layers[0].to_data(drawn)
        return self._as_frame(drawn.cpu().numpy().astype(np.float64))

    @dense_in_parts
    def denoise(self, X: Any, channel: Channel, data: Any = None, return_std: bool = False) -> Any:
        """Denoise rows and return their posterior means, (n_samples, n_features), with the type of X.

        For categorical columns, the most probable category is returned; for integer columns, means are rounded. A
        warning reports the number of rows without a converged solution. `tapmachine.denoise(model.machine_, …)` returns
        the full posterior.

        Args:
            X: Noisy rows. NaN marks unobserved values.
            channel: Noise model, such as `BinarySymmetric(0.1)` or `GaussianNoise(0.2)`. For tables with a schema, the
                noise acts on encoded rows, in which real columns have a standard deviation of 1.
            data: Example rows, such as the training data, which provide additional starting points (default: None).
                Additional starting points help if the noise is strong.
            return_std: Whether to also return standard deviations (default: False).
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
