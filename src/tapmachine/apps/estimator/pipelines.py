"""Estimators for pipelines of scikit-learn: an imputer, a classifier and a regressor that share a model of tables."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, OneToOneFeatureMixin, RegressorMixin, TransformerMixin
from sklearn.utils import Tags, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tapmachine.apps.estimator.rbm import RBM
from tapmachine.data.columns import RawColumn
from tapmachine.data.errors import DataError
from tapmachine.tables.frames import Frame, library_of
from tapmachine.tables.schema import Schema

Array = np.ndarray[Any, Any]


class _TableEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of estimators that fit an `RBM` to the columns of a table."""

    def __init__(self, n_hidden: int = 100, *, columns: dict[str, str] | None = None, random_state: Any = 0) -> None:
        self.n_hidden = n_hidden
        self.columns = columns
        self.random_state = random_state

    def _read(self, X: Any, reset: bool = False) -> Frame:
        """Validate rows and convert them to columns with the names of the training data."""
        if not reset:
            check_is_fitted(self)
        if library_of(X) is None:
            X = _as_frame(validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan"))
        else:
            validate_data(self, X, reset=reset, skip_check_array=True)
        frame = Frame.of(X)
        if reset:
            self._names = frame.names
            self._target = max(frame.names, key=len) + "_" if "target" in frame.names else "target"
        named = zip(frame.columns, self._names, strict=True)
        return replace(frame, columns=tuple(replace(column, name=name) for column, name in named))

    def _fit(self, X: Any, sample_weight: Any, frame: Frame, *target: RawColumn, kind: str | None = None) -> Self:
        """Fit the model to columns and a target. Rows are sorted, so that the result does not depend on their order."""
        columns = (*frame.columns, *target)
        check_consistent_length(*(column.values for column in columns))
        kinds = (self.columns or {}) | ({self._target: kind} if kind else {})
        inferred = {column.name: column.kind for column in Schema.infer(columns, kinds).columns}
        for column in columns:  # floats may be whole numbers in the training data only
            if column.type == "float" and (library_of(X) is None or inferred[column.name] != "binary"):
                kinds.setdefault(column.name, "real")
        order = np.lexsort([column.values.astype(str) for column in columns])
        table = replace(frame, index=None).table([replace(own, values=own.values[order]) for own in columns])
        self.model_ = RBM(self.n_hidden, random_state=self.random_state, columns=kinds)
        self.model_.fit(table, sample_weight=_check_sample_weight(sample_weight, order)[order])
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags


class RBMImputer(OneToOneFeatureMixin, TransformerMixin, _TableEstimator):  # type: ignore[misc]
    """Imputation of missing values from the other columns, as a transformer of scikit-learn.

    The imputer fits the model of tables of `RBM`, which supports columns of numbers, counts, booleans, text and
    categories with missing values. Missing numbers are replaced by their posterior means given the observed values of
    the row, and missing categories by the most probable category. DataFrames keep their columns, types and index, and
    arrays remain arrays.

    Args:
        n_hidden: Maximum number of hidden units; see `RBM` (default: 100).
        columns: Kinds of columns by name: real, count, binary or categorical (default: inferred from the types and
            values of DataFrame columns, and real for arrays of numbers). Columns of arrays are named "0", "1", ….
        random_state: Random seed.

    Attributes:
        model_: The fitted `RBM`, which also provides intervals, draws and scores.
        n_features_in_, feature_names_in_: Number and names of the columns, as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> from sklearn.datasets import load_iris
        >>> from tapmachine import RBMImputer
        >>> x = load_iris().data
        >>> x[0, 2] = np.nan
        >>> RBMImputer(n_hidden=4).fit_transform(x)[0].round(1)
        array([5.1, 3.5, 1.5, 0.2])
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to the observed values of a DataFrame or an array. `y` is ignored."""
        return self._fit(X, sample_weight, self._read(X, reset=True))

    def transform(self, X: Any) -> Any:
        """Impute the missing values of rows. The result has the type of X."""
        frame = self._read(X)
        complete = self.model_.impute(frame.table(frame.columns))
        if library_of(X) is None:
            return complete.to_numpy()
        complete.columns = X.columns
        return complete


class RBMClassifier(ClassifierMixin, _TableEstimator):  # type: ignore[misc]
    """Classifier for tables with columns of several types and missing values.

    The classifier fits the model of tables of `RBM` to the columns of X and the classes, and predicts the probability
    of each class given the observed values of a row.

    Args:
        n_hidden, columns, random_state: See `RBMImputer`.

    Attributes:
        classes_: The classes.
        model_: The fitted `RBM`, whose last column contains the classes.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from tapmachine import RBMClassifier
        >>> x, y = load_iris(return_X_y=True, as_frame=True)
        >>> RBMClassifier().fit(x, y).predict(x.iloc[[0, 50, 100]])
        array([0, 1, 2])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to a DataFrame or an array and the classes of its rows, (n_samples,)."""
        y = validate_data(self, y=y)
        check_classification_targets(y)
        frame = self._read(X, reset=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        names = np.array([str(value) for value in self.classes_], object)
        target = RawColumn(self._target, "category", names[codes], "Enum", (*names,))
        return self._fit(X, sample_weight, frame, target, kind="categorical" if len(names) > 1 else None)

    def predict_proba(self, X: Any) -> Array:
        """Compute the probability of each class given the row, (n_samples, n_classes), in the order of `classes_`."""
        frame = self._read(X)
        return np.asarray(self.model_.predict_proba(frame.table(frame.columns), self._target))

    def predict(self, X: Any) -> Array:
        """Predict the most probable class of each row, (n_samples,)."""
        most_probable = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[most_probable])


class RBMRegressor(RegressorMixin, _TableEstimator):  # type: ignore[misc]
    """Regressor for tables with columns of several types and missing values.

    The regressor fits the model of tables of `RBM` to the columns of X and the target, and predicts the posterior mean
    of the target given the observed values of a row.

    Args:
        n_hidden, columns, random_state: See `RBMImputer`.

    Attributes:
        model_: The fitted `RBM`, whose last column contains the target.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from tapmachine import RBMRegressor
        >>> x, y = load_iris().data[:, :3], load_iris().data[:, 3]
        >>> x[::5, 0] = float("nan")
        >>> mean, deviation = RBMRegressor(n_hidden=4).fit(x, y).predict(x[:2], return_std=True)
        >>> mean.round(1)
        array([0.2, 0.2])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to a DataFrame or an array and the targets of its rows, (n_samples,)."""
        y = validate_data(self, y=y, y_numeric=True).astype(np.float64)
        frame = self._read(X, reset=True)
        return self._fit(X, sample_weight, frame, RawColumn(self._target, "float", y, "Float64"), kind="real")

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the posterior mean of the target of each row, and its standard deviation if `return_std` is set."""
        frame = self._read(X)
        unknown = np.full(len(frame.columns[0].values), np.nan)
        table = frame.table([*frame.columns, RawColumn(self._target, "float", unknown, "Float64")])
        found = self.model_.impute(table, return_std=True)
        mean, deviation = (np.asarray(values[self._target], np.float64) for values in found)
        return (mean, deviation) if return_std else mean


def _as_frame(array: Array) -> Any:
    """Convert an array to a pandas DataFrame of floating-point numbers, or of inferred types if it contains text."""
    try:
        import pandas
    except ImportError:
        raise DataError("imputers, classifiers and regressors of arrays require pandas: pip install pandas") from None
    try:
        return pandas.DataFrame(array if array.dtype.kind == "f" else array.astype(np.float64))
    except ValueError:
        return pandas.DataFrame(array.astype(object)).infer_objects()
