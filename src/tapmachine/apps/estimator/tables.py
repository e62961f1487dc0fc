"""The estimator on tables: DataFrames in and out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from tapmachine.apps.estimator.input import dense_in_parts
from tapmachine.apps.estimator.uses import Array, TrainedMachine
from tapmachine.data.checks import check_count
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
from tapmachine.data.given import given_row
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.runs.conditional import conditional_samples


def _has_schema(estimator: "TableMachine") -> bool:
    return getattr(estimator, "schema_", None) is not None


class TableMachine(TrainedMachine):
    """Estimator methods on DataFrames, which return DataFrames with the index and columns of their input.

    Attributes:
        schema_: Kinds of the columns, if fitted to a DataFrame with columns other than floats.
    """

    columns: dict[str, str] | None
    visible: Any
    binarize: float | None
    interval: Any
    schema_: Schema | None
    _frame: FrameType | None

    # ----- DataFrames in

    def _array(self, X: Any, reset: bool = False, gaps: bool = False) -> Array:
        """Rows of numbers: tables are encoded by their schema, other input is checked as usual."""
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
        """Remember the columns if X is a DataFrame."""
        is_frame = library_of(X) is not None
        self.schema_ = self._new_schema(X) if is_frame else None
        self._frame = FrameType.of(X) if is_frame else None
        if self.columns is not None and self.schema_ is None:
            raise ValueError("columns requires named columns; pass X as a DataFrame")

    def _new_schema(self, X: Any) -> Schema | None:
        """Schema of a table; None if all columns are floats or a unit type was set."""
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
        """Rows as a DataFrame like the training data or the input; `keep` retains the cells of the input.

        Returns an array if the machine was fitted to an array or the input is one.
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
        """Means of the visible units given the (last layer of) hidden units, (n_samples, n_features).

        Categories are the most probable ones. Returns a DataFrame if the machine was fitted to one.
        """
        rows = super().inverse_transform(X)
        result = self._as_frame(rows)
        if library_of(X) == "pandas" and library_of(result) == "pandas":
            result.index = X.index
        return result

    @dense_in_parts
    def free_energy(self, X: Any) -> Any:
        """Free energy F(x) of each row, (n_samples,): ln P(x) = −F(x) − ln Z.

        With several hidden layers, it is computed by TAP; NaN for rows where TAP does not converge.
        """
        values = super().free_energy(X)
        values = values + self._schema().log_scale(self._array(X, gaps=True)) if _has_schema(self) else values
        return self._as_series(values, "free_energy", X)

    @dense_in_parts
    def score_samples(self, X: Any) -> Any:
        """Log-likelihood ln P(x) of each row in nats, (n_samples,); a Series with the index of a DataFrame.

        ln Z is exact if the machine is small enough to be enumerated quickly (16 binary hidden units); otherwise it is
        estimated by annealed importance sampling, adding temperatures until its standard error is below 0.1 nats.
        It is computed once for a fitted machine; `score_method_` and `score_error_` hold the method and the error. With
        several hidden layers, the weight of each row is enumerated or annealed as well.

        Warns:
            LikelihoodWarning: If the standard error of ln Z stays above 0.1 nats.
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
        """Draw samples, (n_samples, n_features), by Gibbs chains that start from rows of the training data.

        Samples of the default machine of a table, which is a mixture, are exact and independent. After `fit` with a
        DataFrame, samples are a DataFrame with the same columns and types.

        Args:
            n_samples: Number of samples.
            n_sweeps: Gibbs sweeps of each chain.
            random_state: Random seed. By default every call draws new samples; after `fit` with the same
                `random_state`, the same sequence of calls gives the same samples.
            given: Fixed values of some columns, by name (DataFrames) or index (arrays); the others are sampled.

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
        drawn = drawn.argmax(-1) if self.machine_.layers[0].is_categorical else drawn
        return self._as_frame(drawn.cpu().numpy().astype(np.float64))

    @dense_in_parts
    def denoise(self, X: Any, channel: Channel, data: Any = None, return_std: bool = False) -> Any:
        """Denoise rows; returns posterior means, (n_samples, n_features), in the type of X.

        Categories are the most probable ones; integers are rounded. Rows without a converged solution are reported by a
        warning; `tapmachine.denoise(machine_, …)` has more results.

        Args:
            X: Noisy rows; NaN marks unobserved values.
            channel: The noise, such as `BinarySymmetric(0.1)` or `GaussianNoise(0.2)`; for tables with a schema,
                it acts on encoded rows, in which real columns have a standard deviation of 1.
            data: Examples, such as the training data; useful if the noise is strong.
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
