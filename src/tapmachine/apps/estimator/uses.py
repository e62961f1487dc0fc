"""Methods of a fitted estimator: features, log-likelihoods, samples, denoising, imputation and recovery."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from tapmachine.analysis.features import hidden_means, warn_of_failures
from tapmachine.apps.estimator.input import check_names, columns_named, dense_in_parts, matrix_of
from tapmachine.data.errors import DataWarning, LikelihoodWarning, warn
from tapmachine.likelihood.products import as_product_mixture, is_product_mixture
from tapmachine.likelihood.slabs import as_gaussian_mixture, is_gaussian_mixture
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.unbiased import TOLERANCE, LogPartition, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.conditioning import clamp
from tapmachine.machine.sampler import gibbs
from tapmachine.posterior import Posterior, denoise
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.posterior.denoising import check_channel
from tapmachine.posterior.measurements import Measurements, recover
from tapmachine.runs.build import prepare_rows
from tapmachine.solver import TAP, solve
from tapmachine.training.gaps import take_gaps

Array = np.ndarray[Any, Any]

FLOATS = (np.float64, np.float32)


class TrainedMachine(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class with the methods of a fitted estimator.

    The class inherits from `TransformerMixin` because scikit-learn wraps `transform` for `set_output` in the class that
    defines it.
    """

    machine_: BoltzmannMachine
    random_state: Any
    _double: BoltzmannMachine
    _starts: Tensor
    _training: Any
    _log_partition: LogPartition | None
    _draws: np.random.RandomState
    _n_features_out: int

    @dense_in_parts
    def transform(self, X: Any) -> Array:
        """Compute features: the means of the hidden units of the last layer given each row, (n_samples, n_hidden).

        Features of binary units lie in [0, 1]. Rows may contain missing values (NaN).
        """
        check_is_fitted(self)
        array = self._array(X, gaps=True)
        gappy = np.isnan(array).any(axis=1)
        features = np.empty((len(array), self._n_features_out), array.dtype)
        if not gappy.all():
            features[~gappy] = hidden_means(self._double, self._states(array[~gappy]))[-1].detach().cpu().numpy()
        if gappy.any():
            y = self._rows_with_gaps(array[gappy]).to(self._double.device)
            features[gappy] = denoise(self._double, y, Missing()).moments[-1].mean.detach().cpu().numpy()
        return features

    def inverse_transform(self, X: Any) -> Array:
        """Compute the means of the visible units given the hidden units of the last layer, (n_samples, n_features).

        For categorical units, the most probable category is returned.
        """
        check_is_fitted(self)
        hidden = check_array(X, dtype=FLOATS)
        if hidden.shape[1] != self._n_features_out:
            raise ValueError(f"X has {hidden.shape[1]} columns; expected {self._n_features_out}, one per hidden unit")
        values = torch.tensor(hidden, dtype=self._double.dtype, device=self._double.device)
        if len(self._double.layers) == 2:
            visible = self._double.conditional(0, [None, values]).mean
        else:
            top = len(self._double.layers) - 1
            solution = solve(clamp(self._double, values, layer=top, validate=False), None)
            warn_of_failures(solution, "visible means")
            visible = solution.moments[0].mean
        visible = self.machine_.layers[0].to_data(visible)
        return visible.detach().cpu().numpy().astype(hidden.dtype, copy=False)

    def free_energy(self, X: Any) -> Array:
        """Compute the free energy F(x) of each row, (n_samples,), defined by ln P(x) = −F(x) − ln Z.

        With several hidden layers, F(x) is approximated by TAP and is NaN for rows where TAP does not converge.
        """
        check_is_fitted(self)
        rows = self._states(self._array(X))
        deep = len(self._double.layers) > 2
        weights = clamped_log_weight(self._double, rows, TAP()) if deep else log_weight(self._double, rows)
        return -weights.cpu().numpy()

    def score_samples(self, X: Any) -> Array:
        """Compute the log-likelihood ln P(x) of each row in nats, (n_samples,).

        ln Z is exact if the machine is small enough to be enumerated quickly (up to 16 binary hidden units). Otherwise,
        ln Z is estimated by annealed importance sampling, with as many temperatures as needed for a standard error
        below 0.1 nats. ln Z is computed once per fitted machine. The attributes `score_method_` and `score_error_`
        contain the method and the standard error. With several hidden layers, the weight of each row is also computed
        by enumeration or annealing. Rows with missing values (NaN) are scored by ln P(x_obs), the log-likelihood of the
        observed values.

        Warns:
            LikelihoodWarning: If the standard error of ln Z is still above 0.1 nats.
        """
        check_is_fitted(self)
        partition = self._partition()
        array = self._array(X, gaps=True)
        if np.isnan(array).any():
            x, missing = take_gaps(self.machine_, self._rows_with_gaps(array).to(self.machine_.device))
        else:
            x, missing = self._states(array), None
        scored = unbiased_log_likelihood(self.machine_, x, partition, missing=missing)
        return scored.values.cpu().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows in nats. See `score_samples`."""
        return float(self.score_samples(X).mean())

    @property
    def score_method_(self) -> str:
        """Method used to compute ln Z for the scores: `exact` or `annealed`."""
        check_is_fitted(self)
        return self._partition().method

    @property
    def score_error_(self) -> float:
        """Standard error of ln Z in nats, which all scores share; 0 if ln Z is exact."""
        check_is_fitted(self)
        return self._partition().error

    def _partition(self) -> LogPartition:
        """Return ln Z of the fitted machine, which is computed on the first call."""
        if self._log_partition is None:
            self._log_partition = unbiased_log_partition(self.machine_, self._starts.to(self.machine_.device))
            if not self._log_partition.error < TOLERANCE:
                warn(
                    f"the standard error of ln Z is {self._log_partition.error:.2g} nats, above {TOLERANCE}. All "
                    "scores share this error, and are too high if annealing missed some modes. "
                    "tapmachine.compare_likelihoods compares ln Z with other estimates",
                    LikelihoodWarning,
                )
        return self._log_partition

    def sample(self, n_samples: int = 1, n_sweeps: int = 200, random_state: Any = None) -> Array:
        """Draw samples, (n_samples, n_features), with Gibbs chains that start from rows of the training data.

        The default machine of a table is a mixture model, whose samples are exact and independent.

        Args:
            n_samples: Number of samples (default: 1).
            n_sweeps: Number of Gibbs sweeps of each chain (default: 200).
            random_state: Random seed. By default, every call draws new samples. After `fit` with the same
                `random_state`, the same sequence of calls returns the same samples.
        """
        check_is_fitted(self)
        seeds = self._seeds(random_state)
        generator = self._generator(seeds)
        if is_product_mixture(self._double):
            return as_product_mixture(self._double).sample(n_samples, generator).cpu().numpy()
        if is_gaussian_mixture(self._double):  # Gibbs chains may not mix between components
            return as_gaussian_mixture(self._double).sample(n_samples, generator).cpu().numpy()
        start = check_rows(self.machine_, self._some_starts(n_samples, seeds))
        visible = gibbs(self.machine_, start, n_sweeps, generator)[0]
        states = self.machine_.layers[0].to_data(visible)
        return states.cpu().numpy().astype(np.float64)

    def _chain_starts(self, n: int, random_state: Any) -> tuple[Tensor, torch.Generator]:
        """Return the starting rows of `n` chains and a random number generator."""
        seeds = self._seeds(random_state)
        generator = self._generator(seeds)
        return self._some_starts(n, seeds), generator

    def _seeds(self, random_state: Any) -> np.random.RandomState:
        seeds: np.random.RandomState = self._draws if random_state is None else check_random_state(random_state)
        return seeds

    def _generator(self, seeds: np.random.RandomState) -> torch.Generator:
        return torch.Generator(self.machine_.device).manual_seed(int(seeds.randint(2**31 - 1)))

    def _some_starts(self, n: int, seeds: np.random.RandomState) -> Tensor:
        rows = torch.from_numpy(seeds.randint(len(self._starts), size=n)).to(self.machine_.device)
        return self._starts.to(rows.device)[rows]

    def denoise(self, X: Any, channel: Channel, data: Any = None, return_std: bool = False) -> Any:
        """Denoise rows and return their posterior means, (n_samples, n_features).

        For categorical units, the most probable category is returned. A warning reports the number of rows without a
        converged solution. `tapmachine.denoise(model.machine_, …)` returns the full posterior.

        Args:
            X: Noisy rows. NaN marks unobserved values.
            channel: Noise model, such as `BinarySymmetric(0.1)` or `GaussianNoise(0.2)`.
            data: Example rows, such as the training data, which provide additional starting points (default: None).
                Additional starting points help if the noise is strong.
            return_std: Whether to also return standard deviations (default: False).
        """
        check_is_fitted(self)
        check_channel(channel)
        array = self._array(X, gaps=True)
        examples = None if data is None else self._rows(self._array(data))
        y = self._rows_with_gaps(array) if channel.sees_states else torch.from_numpy(np.array(array))
        posterior = denoise(self._double, y.to(self._double.device), channel, data=examples)
        return self._estimates(posterior, array.dtype, return_std)

    def impute(self, X: Any, data: Any = None, return_std: bool = False) -> Any:
        """Impute missing values (NaN) with posterior means or most probable categories, (n_samples, n_features).

        Args:
            X: Rows with missing values.
            data: Example rows, such as the training data, which provide additional starting points (default: None).
                Additional starting points help if many values are missing.
            return_std: Whether to also return standard deviations, which are 0 for observed values (default: False).
        """
        return self.denoise(X, Missing(), data, return_std)

    def recover(
        self, y: Any, channel: Measurements, data: Any = None, return_std: bool = False, engine: Any = None
    ) -> Any:
        """Recover rows from measurements, such as linear combinations of their columns.

        Returns posterior means, (n_samples, n_features). For categorical units, the most probable category is returned.
        A warning reports the number of rows without a converged solution. `tapmachine.recover(model.machine_, …)`
        returns the full posterior.

        Args:
            y: Measurements, one row per sample, (n_samples, n_measurements). NaN marks missing measurements.
            channel: Measurement model with the matrix and the noise, such as `LinearMeasurements(F, noise=0.1)`. F has
                shape (n_measurements, n_features); for categorical units, it has one column per category of each
                feature.
            data: Example rows, such as the training data, which provide additional starting points (default: None).
                Additional starting points help if there are few measurements.
            return_std: Whether to also return standard deviations (default: False).
            engine: Algorithm, one of "gamp", "vamp" and "ep"; see `tapmachine.recover` (default: chosen from the
                matrix).

        Example:
            >>> import numpy as np
            >>> from tapmachine import RBM, LinearMeasurements
            >>> x = np.repeat(np.eye(4), 20, axis=0)
            >>> model = RBM(n_hidden=4, epochs=20, random_state=0).fit(x)
            >>> F = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 0.0, -1.0, 2.0]])  # two measurements of four values
            >>> model.recover([[3.0, -1.0]], LinearMeasurements(F, noise=0.1)).round() + 0.0
            array([[0., 0., 1., 0.]])
        """
        check_is_fitted(self)
        array = check_array(y, dtype=FLOATS, ensure_all_finite="allow-nan", input_name="y")
        examples = None if data is None else self._rows(self._array(data))
        posterior = recover(self.machine_, array, channel, data=examples, engine=engine)
        return self._estimates(posterior, array.dtype, return_std)

    def _estimates(self, posterior: Posterior, dtype: Any, return_std: bool) -> Any:
        """Return posterior means or most probable categories and, with `return_std`, standard deviations."""
        results = [z.cpu().numpy().astype(dtype, copy=False) for z in (posterior.values, posterior.deviation)]
        return tuple(results) if return_std else results[0]

    def _rows_with_gaps(self, array: Array) -> Tensor:
        """Prepare rows like `_rows`, but keep missing values as NaN."""
        gaps = np.isnan(array)
        lower = self.machine_.layers[0].bounds()[0]
        anything = float(lower) if lower.dim() == 0 and bool(torch.isfinite(lower)) else 0.0
        filled = self._rows(np.where(gaps, anything, array)).cpu().to(torch.from_numpy(array[:0]).dtype)
        return filled.masked_fill(torch.from_numpy(gaps), torch.nan)

    def _array(self, X: Any, reset: bool = False, gaps: bool = False) -> Array:
        checked = self._checked(X, reset, gaps)
        array: Array = checked.toarray() if issparse(checked) else checked
        return array

    def _sparse(self, X: Any, reset: bool = False) -> Any:
        """Return the rows as a sparse matrix in CSR format, or None if they are dense."""
        return self._checked(X, reset, True) if issparse(matrix_of(X)[0]) else None

    def _checked(self, X: Any, reset: bool, gaps: bool) -> Any:
        matrix, names = matrix_of(X)
        finite = "allow-nan" if gaps else True
        if names is None:
            options: dict[str, Any] = {"dtype": FLOATS, "accept_sparse": "csr", "ensure_all_finite": finite}
            with columns_named(self, X):
                return validate_data(self, matrix, reset=reset, **options)
        checked = check_array(matrix, dtype=FLOATS, accept_sparse="csr", ensure_all_finite=finite)
        if reset:
            self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        check_names(names, self)
        return checked

    def _rows(self, array: Array) -> Tensor:
        """Prepare rows for the machine. Values outside the interval of the training data are clipped with a warning."""
        machine = self.machine_
        dtype = str(machine.dtype).removeprefix("torch.")  # always float64 for tables
        settings = replace(self._training.settings, dtype=dtype)
        x = prepare_rows(settings, array).to(machine.device)
        units = machine.layers[0]
        if units.support.is_countable or settings.interval is not None:
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

    def _states(self, array: Array) -> Tensor:
        """Prepare and check rows, and convert them to visible states in float64."""
        return check_rows(self.machine_, self._rows(array)).to(self._double.dtype)
