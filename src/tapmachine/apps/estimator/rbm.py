"""The scikit-learn estimator `RBM`."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, Self, get_type_hints

import numpy as np
import torch
from sklearn.utils import Tags, check_random_state
from torch import Tensor

from tapmachine.accelerator.devices import pick_device
from tapmachine.apps.estimator.gaps import CellMachine
from tapmachine.apps.estimator.input import weighted_lazy_rows
from tapmachine.apps.estimator.training import (
    N_STARTS,
    LastTraining,
    check_observed,
    starts_from,
    take_up,
    weighted_rows,
    whole_number,
)
from tapmachine.data.declarations import kinds
from tapmachine.data.errors import TrainingWarning, warn
from tapmachine.data.rows import Rows, spaced
from tapmachine.machine.checks import in_double
from tapmachine.runs.build import make_machine, make_trainer, prepare_gappy_rows, prepare_rows
from tapmachine.runs.settings import Settings
from tapmachine.tables.machine import NewMachine
from tapmachine.tables.table_units import units_for
from tapmachine.tables.units import UnitMaker
from tapmachine.training import Monitor, Training
from tapmachine.training.loop import run_epochs
from tapmachine.training.monitor import Record

N_MEASURED = 5  # number of epochs after the first at which the log-likelihood is measured


class RBM(CellMachine):
    """A Restricted or Deep Boltzmann Machine with the scikit-learn interface.

    The estimator trains like `tapmachine.fit`. All other functions of the package can be applied to the fitted machine,
    `machine_`. With the same `random_state`, all results are reproducible, including scores and sequences of samples.

    By default, hidden units are binary. The exception is a single hidden layer above Gaussian visible units, the
    default for real-valued tables. The hidden units of this layer are fitted by maximum likelihood, so `epochs` and
    `batch_size` have no effect. One `Gaussian` unit per column models the correlations. `SpikeSlab` units, of which at
    most 8 have nonzero weights, model heavy tails. If cross-validation finds clusters, a `Categorical` unit has one
    state per cluster.

    If training is interrupted, the machine of the last complete epoch is kept and can be trained further with
    `partial_fit`.

    Args:
        n_hidden: Number of hidden units, whose means are the features. A tuple such as (100, 50) creates a deep
            machine, whose features are the means of the last layer. For real-valued tables, one additional feature
            per column precedes these features and, if clusters were found, the cluster probabilities follow them.
        pretrain: Number of epochs for pretraining the first hidden layer of a deep machine (default: same as `epochs`).
        hidden_units: Type of the hidden units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian or
            gauss-bernoulli. Units of the last two types take values between -1 and 1. With auto, units are
            spike-slab in a single hidden layer above gaussian units, and binary otherwise.
        visible: Type of the visible units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian,
            gauss-bernoulli, poisson, categorical. With auto, the type is inferred from the data and described by
            `visible_`. For a custom unit type, pass units, or a class or function that creates `n` units when called
            with `n`. Data for custom units are not rescaled.
        binarize: Threshold for binarizing the data (default: None, no binarization). Values above the threshold become
            1, all others 0.
        interval: Interval of real values, such as (0, 1). If set, values outside the interval raise an error. By
            default, the interval is [0, 1] or the range of the training data, and later values are clipped to it with a
            warning.
        columns: Kinds of DataFrame columns by name: real, count, binary or categorical (default: inferred from the
            types and values of the columns). `print(model.schema_.describe())` shows the kinds.
        epochs: Number of passes over the data (default: enough for 20,000 gradient steps, but between 50 and 300).
        batch_size: Number of rows per gradient step (default: a quarter of the rows, but between 10 and 100).
        objective: Training objective: default, tap, adaptive-tap, belief-propagation, relaxed-bp, cd, pcd. With
            default, the objective of `tapmachine.fit` is used.
        n_sweeps: Number of TAP or Gibbs sweeps per gradient step (default: 1 for cd, 20 for belief-propagation and
            relaxed-bp, and 10 otherwise).
        n_particles: Number of TAP solutions or Gibbs chains (default: the batch size).
        start: Starting points of the TAP solutions: batch, data, noisy, random, persistent, chains.
        learning_rate: Initial learning rate, for data scaled to about 1 (default: chosen from the data).
        decay: Final learning rate as a fraction of the initial learning rate.
        momentum: Momentum of the gradient steps.
        weight_decay: Coefficient of the L2 penalty on the weights.
        l1: Coefficient of the L1 penalty on the weights.
        centered: Whether to use centered gradients (default: True for unit types that support centering).
        averaged: Whether to average the parameters over the last eighth of the training steps.
        dtype: Data type of the parameters: float32 or float64.
        device: Device to train on: cpu, cuda, or auto, which uses a GPU if one is available.
        random_state: Random seed.
        verbose: Whether to show training progress. If True, the log-likelihood is measured after every epoch, including
            the TAP estimate.

    Attributes:
        machine_: Fitted machine, in the units of the data.
        visible_: Description of the visible unit type and the reason for its choice.
        schema_: Kind of each column, for a DataFrame with columns other than floats; None otherwise.
        history_: Training history, a list with one dictionary per epoch. Each dictionary has the keys `loss`,
            `gradient_norm` and others. About five epochs, including the first and the last, also have the
            `log_likelihood` of the training rows and its `log_likelihood_method` (see `Monitor`).
        score_method_, score_error_: Method used to compute ln Z for the scores, `exact` or `annealed`, and the
            standard error of ln Z in nats. Both are computed on first access.
        components_: Weights of the first layer, (n_hidden, n_features), or (n_hidden, n_features·q) for features with q
            categories.
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
        pretrain: int | None = None,
        hidden_units: str = "auto",
        visible: str | UnitMaker = "auto",
        binarize: float | None = None,
        interval: tuple[float, float] | None = None,
        columns: dict[str, str] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        objective: str = "default",
        n_sweeps: int | None = None,
        n_particles: int | None = None,
        start: str = "batch",
        learning_rate: float | None = None,
        decay: float = 0.01,
        momentum: float = 0.5,
        weight_decay: float = 0.0,
        l1: float = 0.0,
        centered: bool | None = None,
        averaged: bool = True,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.n_hidden = n_hidden
        self.pretrain = pretrain
        self.hidden_units = hidden_units
        self.visible = visible
        self.binarize = binarize
        self.interval = interval
        self.columns = columns
        self.epochs = epochs
        self.batch_size = batch_size
        self.objective = objective
        self.n_sweeps = n_sweeps
        self.n_particles = n_particles
        self.start = start
        self.learning_rate = learning_rate
        self.decay = decay
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.l1 = l1
        self.centered = centered
        self.averaged = averaged
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ----- training

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit a new machine to the rows of X.

        Args:
            X: Training data, (n_samples, n_features): an array, a DataFrame, an AnnData object or a sparse matrix.
                Sparse matrices are not converted to dense arrays. NaN marks missing values; the machine is fitted to
                the observed values.
            y: Ignored. Present for compatibility with scikit-learn.
            sample_weight: Weight of each row, (n_samples,). A row of weight 2 counts as two rows. By default, all
                weights are 1.

        Returns:
            The fitted estimator.
        """
        settings = self._settings(self.epochs)
        with self._all_or_nothing():
            x, weights = self._first_rows(settings, X, sample_weight)
            settings = settings.for_rows(len(x))
            new = self._new_machine(settings, x, weights)
            trainer = make_trainer(settings, new, x, None, self._monitor(new, settings.all_epochs), weights)
            history: list[Record] = []
            interrupted = self._train(trainer, history)
            self._finish(LastTraining(settings, new, trainer.joint().state()), history, starts_from(x))
        if interrupted is not None:
            warn(
                f"training was interrupted after {len(history)} of {settings.all_epochs} epochs; the machine of the "
                "last complete epoch is kept",
                TrainingWarning,
            )
            raise interrupted
        return self

    def _train(self, training: Training, history: list[Record]) -> KeyboardInterrupt | None:
        """Train all epochs. If training is interrupted, restore the last complete epoch and return the interrupt."""
        state = None

        def keep(record: Record) -> None:
            nonlocal state
            state = training.state()
            history.append(record)

        try:
            run_epochs(training, [keep], progress=self.verbose)
        except KeyboardInterrupt as interrupt:
            if state is None:
                raise
            training.restore(state)
            return interrupt
        return None

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on the rows of X, without pretraining.

        The learning rate is the final learning rate of the previous training run. The first call infers the visible
        unit type from its rows. Set `interval` if later rows have a wider range. Missing values and weights are treated
        as in `fit`.

        Args:
            X: Training data, as for `fit`.
            y: Ignored. Present for compatibility with scikit-learn.
            sample_weight: Weight of each row, (n_samples,). By default, all weights are 1.

        Returns:
            The fitted estimator.
        """
        with self._all_or_nothing():
            self._pass_over(X, getattr(self, "_training", None), sample_weight)
        return self

    def _pass_over(self, X: Any, before: LastTraining | None, sample_weight: Any) -> None:
        history, starts = (list(self.history_), self._starts) if before else ([], None)
        if before is None:
            settings = self._settings(1, decay=1.0, pretrain=0, hidden_units=self._chosen_hidden())
            x, weights = self._first_rows(settings, X, sample_weight)
            new = self._new_machine(settings, x, weights)
        else:
            if before.new.transform is not None:
                raise ValueError(
                    "partial_fit cannot continue a fit with Gaussian visible units, which does not use gradient steps; "
                    "call fit with all rows, or use partial_fit from the start"
                )
            settings = self._settings(
                1, decay=1.0, pretrain=0, seed=before.settings.seed, hidden_units=self._chosen_hidden()
            )
            kept = ("hidden", "visible", "interval", "binarize", "dtype")
            changed = [name for name in kept if getattr(settings, name) != getattr(before.settings, name)]
            if changed:
                raise ValueError(
                    f"{changed[0]} has changed since the machine was first trained; call fit to train a new machine"
                )
            x, weights = self._more_rows(X, sample_weight)
            new = deepcopy(before.new)
        if settings.batch_size is not None:
            settings = replace(settings, batch_size=min(settings.batch_size, len(x)))
        measure = self._monitor(new, 1) if self.verbose else Monitor(n_starts=0)  # X may have few rows
        trainer = make_trainer(settings, new, x, None, measure, weights)
        if before is not None:
            take_up(trainer.joint(), before.state)
        history.append(trainer.epoch() | {"epoch": len(history) + 1})
        seen = starts_from(x) if starts is None else torch.cat((starts, starts_from(x)))
        self._finish(LastTraining(settings, new, trainer.state()), history, spaced(seen, N_STARTS).clone())

    def _more_rows(self, X: Any, sample_weight: Any) -> tuple[Rows, Tensor | None]:
        """Prepare rows and weights for further training of the fitted machine."""
        sparse = self._sparse(X)
        if sparse is not None:
            lazy, weights = weighted_lazy_rows(sparse, sample_weight)
            return lazy.mapped(lambda part: self._rows(part).cpu().numpy()), weights
        array = self._array(X, gaps=True)
        rows = self._rows_with_gaps(array) if np.isnan(array).any() else self._rows(array)
        return weighted_rows(rows.to(self.machine_.device), array, sample_weight)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore all attributes of the estimator if training fails."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _chosen_hidden(self) -> str:
        """Return the hidden unit type for `partial_fit`, which cannot fit the default machine of a table."""
        return "binary" if self.hidden_units == "auto" else self.hidden_units

    def _settings(self, epochs: Any, **others: Any) -> Settings:
        values = {name: getattr(self, name) for name in _passed_on()} | {"epochs": epochs}
        values["columns"] = None  # handled by the schema of the DataFrame
        values["visible"] = "auto" if callable(self.visible) else self.visible  # `_new_machine` creates custom units
        for name, hint in get_type_hints(Settings).items():
            if int in kinds(hint) and name in values and values[name] is not None:
                values[name] = whole_number(name, values[name])
        layers = self.n_hidden if isinstance(self.n_hidden, tuple | list) else (self.n_hidden,)
        values["hidden"] = tuple(whole_number("n_hidden", size) for size in layers)
        values["interval"] = None if self.interval is None else tuple(float(end) for end in self.interval)
        if "seed" not in others:
            values["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Settings("given", **values | others)

    def _first_rows(self, settings: Settings, X: Any, sample_weight: Any) -> tuple[Rows, Tensor | None]:
        sparse = self._sparse(X, reset=True)
        array = self._array(X, reset=True, gaps=True) if sparse is None else sparse
        if array.shape[0] == 1:
            raise ValueError("X has one sample (n_samples=1); expected at least two samples")
        if sparse is not None:
            rows, weights = weighted_lazy_rows(sparse, sample_weight)
            return prepare_rows(settings, rows), weights
        prepare = prepare_gappy_rows if np.isnan(array).any() else prepare_rows
        x = prepare(settings, array).to(pick_device(self.device))
        check_observed(x, getattr(self, "feature_names_in_", None))
        return weighted_rows(x, array, sample_weight)

    def _new_machine(self, settings: Settings, x: Rows, weights: Tensor | None) -> NewMachine:
        units = self.visible if callable(self.visible) else None
        if self.schema_ is not None:
            units = units_for(self.schema_)
        new = make_machine(settings, x, units=units, weights=weights)
        if self.schema_ is not None:
            new = replace(new, why="; ".join(self.schema_.describe().splitlines()))
        new.machine.to(pick_device(self.device))
        if self.verbose:
            print(f"visible units {new.why}")
        return new

    def _monitor(self, new: NewMachine, epochs: int) -> Monitor:
        n_starts, every = (N_STARTS, 1) if self.verbose else (0, max(1, epochs // N_MEASURED))
        return Monitor(
            n_starts, likelihood=True, every=every, scale=new.scale, shift=new.shift, transform=new.transform
        )

    def _finish(self, training: LastTraining, history: list[Record], starts: Tensor) -> None:
        machine = training.new.in_units_of_data()
        self.machine_, self.visible_, self.history_ = machine, training.new.why, history
        self.components_ = machine.weights[0].detach().cpu().numpy().T.copy()
        self._n_features_out = machine.sizes[-1]
        self._training = training
        self._starts = machine.layers[0].from_data(starts)
        self._double = in_double(machine)
        self._log_partition = None  # computed on first access
        self._draws = np.random.RandomState(training.settings.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the float64 copy and with tensors on the CPU, so that unpickling requires no GPU."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "machine_" in state:
            training = state["_training"]
            new = replace(training.new, machine=deepcopy(training.new.machine).cpu())
            state |= {"machine_": deepcopy(self.machine_).cpu(), "_starts": self._starts.cpu()}
            state["_training"] = training._replace(new=new)
            state.pop("_double")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "machine_" in state:
            self._double = in_double(self.machine_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _passed_on() -> list[str]:
    """Return the names of settings that are also parameters of `RBM`."""
    parameters = inspect.signature(RBM.__init__).parameters
    return [declared.name for declared in fields(Settings) if declared.name in parameters]
