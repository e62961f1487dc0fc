"""The scikit-learn estimator `RBM`."""

from copy import deepcopy
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from tapmachine.analysis.features import features_of, visible_means
from tapmachine.apps.estimator.input import FLOATS, Array, as_rows, dense_in_parts, examples, read
from tapmachine.apps.estimator.training import Trained, all_or_nothing, log_partition, train, train_further
from tapmachine.data.checks import check_count
from tapmachine.data.errors import TrainingWarning, warn
from tapmachine.machine.checks import in_double
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.posterior.denoising import check_channel
from tapmachine.tables import cells
from tapmachine.tables.frames import library_of
from tapmachine.tables.units import UnitMaker
from tapmachine.training import Objective


def _has_schema(model: "RBM") -> bool:
    return getattr(model, "schema_", None) is not None


class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A Restricted or Deep Boltzmann Machine with the scikit-learn interface.

    Rows are arrays, sparse matrices, AnnData objects or DataFrames, and NaN marks missing values. The columns of
    DataFrames are identified by their names and modeled by their kinds (`schema_`). A table of numbers with different
    ranges, or of several kinds, is fitted by maximum likelihood with a small machine whose posteriors, scores and
    samples are exact, without gradient steps. At most 20,000 of its rows are fitted, and 1,000 of them determine the
    number of classes and the shrinkage of correlations (see `visible_`). Other data are trained like in
    `tapmachine.fit`. All functions of the package can be applied to the fitted machine, `machine_`. With the same
    `random_state`, all results are reproducible.

    Everybody may need the parameters from `n_hidden` to `verbose`. Those from `columns` to `interval` describe the
    data, and are inferred by default. Those from `hidden_units` on are for experts.

    Args:
        n_hidden: Number of hidden units, whose means are the features; a tuple such as (100, 50) for a deep machine.
            For tables, it is the maximum number of classes of rows and of units for heavy tails. The features of a
            table are the means of one unit per real column, of units for heavy tails, and the probabilities of classes.
        epochs: Number of passes over the data (default: enough for 20,000 gradient steps, but between 50 and 300).
        random_state: Random seed.
        verbose: Whether to show progress, as in notebooks. If True, the log-likelihood and its TAP estimate are
            measured in every epoch.
        columns: Kinds of DataFrame columns by name: real, count, binary or categorical (default: inferred from the
            types and values of the columns). `print(model.schema_.describe())` shows the kinds.
        handle_unknown: How to treat categories that the training data lack, when the fitted machine is applied. With
            missing, they are treated as missing values, with a warning. With error, they raise a ValueError.
        visible: Type of the visible units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian,
            gauss-bernoulli, poisson, categorical. With auto, it is inferred from the data and described by `visible_`.
            For a custom type, pass units, or a class or function that creates `n` units when called with `n`. Data for
            custom units are not rescaled.
        binarize: Threshold above which values become 1, and all others 0 (default: None, no binarization).
        interval: Interval of real values, such as (0, 1); values outside raise an error. By default, the interval is
            [0, 1] or the range of the training data, and later values are clipped to it with a warning.
        hidden_units: Type of the hidden units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian or
            gauss-bernoulli. Units of the last two types take values between -1 and 1. With auto, a table is
            fitted with a categorical unit for its classes, gaussian units for correlations and, if all columns are real
            and complete, spike-slab units for heavy tails. The units of other machines are binary.
        pretrain: Number of epochs for pretraining the first hidden layer of a deep machine (default: same as `epochs`).
        batch_size: Number of rows per gradient step (default: a quarter of the rows, but between 10 and 100).
        objective: Training objective: default, tap, cd, pcd, or an `Objective` such as `PCD(5)`.
        learning_rate: Initial learning rate, for data scaled to about 1 (default: chosen from the data).
        decay: Final learning rate as a fraction of the initial learning rate.
        weight_decay: Coefficient of the L2 penalty on the weights.
        l1: Coefficient of the L1 penalty on the weights.
        device: Device to train on: cpu, cuda, or auto, which uses a GPU if one is available.

    Attributes:
        machine_: Fitted machine, in the units of the data.
        visible_: Description of the visible unit type, the reason for its choice, and notes on the fit of a table.
        schema_: Kind of each column of a DataFrame. None for other data, and if `visible`, `binarize` or `interval` is
            set.
        history_: One dictionary per epoch with `loss`, `gradient_norm` and others. About five epochs, including the
            first and the last, also have the `log_likelihood` of the training rows (see `Monitor`). For a table, a
            single dictionary with the `log_likelihood`.
        score_method_, score_error_: Method used to compute ln Z, `exact` or `annealed`, and its standard error in nats.
        components_: Weights of the first layer, (n_hidden, n_features), with one column per category of a feature.
        n_features_in_, feature_names_in_: Number and names of the features, as in scikit-learn.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from tapmachine import RBM
        >>> x = load_digits().data / 16
        >>> RBM(n_hidden=16, binarize=0.5, epochs=2).fit_transform(x).shape
        (1797, 16)
    """

    def __init__(
        self,
        n_hidden: int | tuple[int, ...] = 100,
        *,
        epochs: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
        columns: dict[str, str] | None = None,
        handle_unknown: str = "missing",
        visible: str | UnitMaker = "auto",
        binarize: float | None = None,
        interval: tuple[float, float] | None = None,
        hidden_units: str = "auto",
        pretrain: int | None = None,
        batch_size: int | None = None,
        objective: str | Objective = "default",
        learning_rate: float | None = None,
        decay: float = 0.01,
        weight_decay: float = 0.0,
        l1: float = 0.0,
        device: str = "auto",
    ) -> None:
        self.n_hidden = n_hidden
        self.epochs = epochs
        self.random_state = random_state
        self.verbose = verbose
        self.columns = columns
        self.handle_unknown = handle_unknown
        self.visible = visible
        self.binarize = binarize
        self.interval = interval
        self.hidden_units = hidden_units
        self.pretrain = pretrain
        self.batch_size = batch_size
        self.objective = objective
        self.learning_rate = learning_rate
        self.decay = decay
        self.weight_decay = weight_decay
        self.l1 = l1
        self.device = device

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit a new machine to the rows of X.

        If training is interrupted, the machine of the last complete epoch is kept.

        Args:
            X: Training data, (n_samples, n_features). With missing values, the machine is fitted to the observed ones.
            y: Ignored. Present for compatibility with scikit-learn.
            sample_weight: Weight of each row, (n_samples,). A row of weight 2 counts as two rows (default: 1).
        """
        with all_or_nothing(self):
            trained, interrupted = train(self, X, sample_weight)
            self._take(trained)
        if interrupted is not None:
            warn(
                f"training was interrupted after {len(trained.history)} of {trained.settings.all_epochs} epochs; the "
                "machine of the last complete epoch is kept",
                TrainingWarning,
            )
            raise interrupted
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on the rows of X, without pretraining, at the final learning rate of earlier training.

        The first call infers the visible unit type from its rows. Set `interval` if later rows have a wider range. The
        arguments are those of `fit`.
        """
        with all_or_nothing(self):
            self._take(train_further(self, X, sample_weight))
        return self

    @dense_in_parts
    def transform(self, X: Any) -> Array:
        """Compute features: the means of the hidden units of the last layer given each row, (n_samples, n_hidden).

        Features of binary units lie in [0, 1]. Rows may contain missing values (NaN).
        """
        table = read(self, X)
        return features_of(self.machine_, table.states).cpu().numpy().astype(table.rows.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Any:
        """Compute the means of the visible units given the features of the last layer, (n_samples, n_features).

        For categorical columns, the most probable category is returned. The result is a DataFrame if the machine was
        fitted to a DataFrame.
        """
        check_is_fitted(self)
        hidden = check_array(X, dtype=FLOATS)
        if hidden.shape[1] != self._n_features_out:
            raise ValueError(f"X has {hidden.shape[1]} columns; expected {self._n_features_out}, one per hidden unit")
        visible = visible_means(in_double(self.machine_), torch.tensor(hidden))
        result = self._codec.decode(as_rows(self.machine_, visible, hidden.dtype), self._codec.frame)
        if library_of(X) == "pandas" and library_of(result) == "pandas":
            result.index = X.index
        return result

    @dense_in_parts
    def score_samples(self, X: Any) -> Any:
        """Compute the log-likelihood ln P(x) of each row in nats, (n_samples,), a Series if X is a DataFrame.

        ln Z is exact if the machine is small enough to be enumerated quickly (up to 16 binary hidden units). Otherwise,
        ln Z is estimated by annealed importance sampling, with as many temperatures as needed for a standard error
        below 0.1 nats. ln Z is computed once per fitted machine. With several hidden layers, the weight of each row is
        also computed by enumeration or annealing. Rows with missing values are scored by the observed values.

        Warns:
            LikelihoodWarning: If the standard error of ln Z is still above 0.1 nats.
        """
        table = read(self, X)
        values = cells.log_likelihoods(self.machine_, self._codec, table.states, log_partition(self))
        return table.series(values, "log_likelihood")

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows in nats. See `score_samples`."""
        return float(self.score_samples(X).mean())

    @property
    def score_method_(self) -> str:
        """Method used to compute ln Z for the scores: `exact` or `annealed`."""
        return log_partition(self).method

    @property
    def score_error_(self) -> float:
        """Standard error of ln Z in nats, which all scores share; 0 if ln Z is exact."""
        return log_partition(self).error

    def sample(
        self,
        n_samples: int = 1,
        n_sweeps: int = 200,
        random_state: Any = None,
        given: dict[Any, Any] | None = None,
        from_data: bool = False,
    ) -> Any:
        """Draw samples, (n_samples, n_features), that visit every mode of the machine with its weight.

        Samples of the default machine of a table are exact and independent. Otherwise, chains are annealed to the
        machine, resampled by their weights and followed by Gibbs sweeps; see `tapmachine.likelihood.equilibrium`. After
        `fit` with a DataFrame, samples are returned as a DataFrame with the same columns and types.

        Args:
            n_samples: Number of samples (default: 1).
            n_sweeps: Number of Gibbs sweeps of each chain, after annealing (default: 200).
            random_state: Random seed. By default, every call draws new samples. After `fit` with the same
                `random_state`, the same sequence of calls returns the same samples.
            given: Values at which some columns are fixed, by column name for DataFrames or by column index for arrays.
            from_data: Whether Gibbs chains start from rows of the training data instead of annealed states (default:
                False). Such chains rarely move between modes, so that their samples follow the data in this respect.

        Example:
            >>> from sklearn.datasets import load_iris
            >>> from tapmachine import RBM
            >>> model = RBM(n_hidden=4).fit(load_iris().data)
            >>> model.sample(2, given={0: 5.1}, random_state=0)[:, 0]
            array([5.1, 5.1])
        """
        check_is_fitted(self)
        n_samples, row = check_count("n_samples", n_samples), None
        if given is not None:
            row = self._codec.given(given, self.n_features_in_)
        seeds = self._draws if random_state is None else check_random_state(random_state)
        generator = torch.Generator(self.machine_.device).manual_seed(int(seeds.randint(2**31 - 1)))

        def rows() -> Tensor:
            return self._trained.start_rows(self.machine_)

        drawn = cells.draw(self.machine_, n_samples, rows, n_sweeps, generator, row, from_data)
        return self._codec.decode(as_rows(self.machine_, drawn, np.float64), self._codec.frame)

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
        check_channel(channel)
        table, machine = read(self, X), self.machine_
        y = table.states if channel.sees_states else torch.from_numpy(table.rows.copy()).to(machine.device)
        if isinstance(channel, Missing):
            found = cells.impute(machine, y, examples(self, data))
        else:
            posterior = denoise(in_double(machine), y, channel, data=examples(self, data))
            found = posterior.values, posterior.deviation
        values, spread = (z.detach().cpu().numpy().astype(table.rows.dtype, copy=False) for z in found)
        result = self._codec.decode(values, table.frame, keep=isinstance(channel, Missing))
        return (result, table.numbers(self._codec.deviations(spread), self._codec.names)) if return_std else result

    def impute(self, X: Any, data: Any = None, return_std: bool = False) -> Any:
        """Impute missing values (NaN) with posterior means or most probable categories, (n_samples, n_features).

        The arguments are those of `denoise`. Standard deviations are 0 for observed values.
        """
        return self.denoise(X, Missing(), data, return_std)

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, column: str) -> Any:
        """Predict the probability of each value of a categorical or binary column given the other columns.

        With one hidden layer and no missing values in the other columns, the probabilities are exact; for the default
        machine of a table, they are always exact. Otherwise, missing values are marginalized with TAP.

        Args:
            X: DataFrame with the other columns. The predicted column is ignored if present.
            column: Name of the column to predict.

        Returns:
            A DataFrame with one row per row of X and one column per value, named by the value itself.
        """
        table = read(self, X, without=column)
        found = cells.probabilities(self.machine_, self._codec, table.states, column)
        return table.numbers(found, self._codec.column(column)[0].categories)

    @available_if(_has_schema)  # type: ignore[untyped-decorator]
    def predict(self, X: Any, column: str) -> Any:
        """Predict a column from the other columns: the most probable category, or the posterior mean of a number.

        Args:
            X: DataFrame with the other columns. The predicted column is ignored if present.
            column: Name of the column to predict.

        Returns:
            A Series of predictions with the data type of the column.
        """
        table = read(self, X, without=column)
        found = cells.prediction(self.machine_, self._codec, table.states, column, level=None)[0]
        return table.table([found])[column]

    def intervals(self, X: Any, level: float = 0.9) -> tuple[Any, Any]:
        """Compute central credible intervals of missing numbers given the observed cells of each row.

        Args:
            X: Rows with missing values.
            level: Probability that an interval contains the missing value (default: 0.9).

        Returns:
            The lower and upper ends of the intervals, with the type of X. For observed cells, both ends are equal to
            the observed value. Categorical and binary columns of DataFrames are omitted; use `predict_proba` for these
            columns.
        """
        table = read(self, X)
        low, high = cells.intervals(self.machine_, self._codec, table.states, level)
        return table.table(low), table.table(high)

    def impute_draws(self, X: Any, n_draws: int = 10, random_state: Any = 0) -> list[Any]:
        """Draw missing values from their joint posterior distribution, for multiple imputation.

        Draws are exact for the default machine of most tables, and otherwise come from Gibbs chains.

        Args:
            X: Rows with missing values.
            n_draws: Number of imputed tables (default: 10).
            random_state: Random seed (default: 0).

        Returns:
            A list of `n_draws` complete tables with the type of X.

        Example:
            >>> import numpy as np
            >>> from sklearn.datasets import load_iris
            >>> from tapmachine import RBM
            >>> x = load_iris().data
            >>> model = RBM(n_hidden=4).fit(x)
            >>> x[0, 2] = np.nan
            >>> [table.shape for table in model.impute_draws(x[:5], 2)]
            [(5, 4), (5, 4)]
        """
        check_count("n_draws", n_draws)
        table = read(self, X)
        posterior = cells.posterior_of(self.machine_, table.states)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        drawn = posterior.draws(n_draws, torch.Generator(posterior.x.device).manual_seed(seed))
        return [self._codec.decode(rows.cpu().numpy(), table.frame, keep=True) for rows in drawn]

    def surprise(self, X: Any) -> Any:
        """Compute the surprise −ln P(x_ij | other cells of the row) of each cell in nats, (n_samples, n_features).

        High values indicate the cells that make a row unusual; `score_samples` scores whole rows. Densities of real
        columns are in the units of the data. The surprise of missing cells is NaN. To compare columns, subtract the
        median of each column. The surprise is exact for the default machine of most tables and, for other machines with
        one hidden layer, in complete rows; in other rows, it is an average over draws of the missing cells.
        """
        table = read(self, X)
        values = cells.surprise(self.machine_, self._codec, table.states)
        return table.numbers(values, self._codec.names)

    def _take(self, trained: Trained) -> None:
        self.machine_ = machine = trained.new.in_units_of_data()
        self.visible_, self.history_ = trained.new.why, trained.history
        self.schema_ = self._codec.schema if self._codec.is_table else None
        self.components_ = machine.weights[0].detach().cpu().numpy().T.copy()
        self._n_features_out, self._trained = machine.sizes[-1], trained
        self._log_partition = None
        self._draws = np.random.RandomState(trained.settings.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with tensors on the CPU, so that unpickling requires no GPU."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "machine_" in state:
            state |= {"machine_": deepcopy(self.machine_).cpu(), "_trained": self._trained.on_cpu()}
        return state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
