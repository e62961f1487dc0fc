"""The scikit-learn estimator."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, Self, get_type_hints

import numpy as np
import torch
from sklearn.utils import Tags, check_random_state
from torch import Tensor

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
from tapmachine.data.errors import TrainingWarning
from tapmachine.data.rows import Rows, spaced
from tapmachine.machine.checks import in_double
from tapmachine.runs.build import make_machine, make_trainer, pick_device, prepare_gappy_rows, prepare_rows
from tapmachine.runs.declarations import kinds
from tapmachine.runs.new_machine import NewMachine
from tapmachine.runs.settings import Settings
from tapmachine.runs.table_units import units_for
from tapmachine.runs.visible_units import UnitMaker
from tapmachine.training import Monitor, Training, run_epochs
from tapmachine.training.monitor import Record

N_MEASURED = 5  # epochs of a training, besides the first


class RBM(CellMachine):
    """A Restricted or Deep Boltzmann Machine with the scikit-learn interface.

    It is trained with `tapmachine.fit`; the fitted machine, `machine_`, works with the rest of the package.
    All results are reproducible with the same `random_state`, including the scores and the sequence of samples.
    Hidden units are binary, except above Gaussian visible units in one hidden layer. For a real-valued table they are
    `Gaussian` units, one per column, which hold the correlations; `SpikeSlab` units, at most 8 of them with weights,
    which model heavy tails; and a `Categorical` unit with one state per cluster, if cross-validation finds clusters.
    They are fitted by maximum likelihood, so `epochs` and `batch_size` have no effect.
    If training is interrupted, the machine of the last complete epoch is kept, and `partial_fit` can train it further.

    Args:
        n_hidden: Number of hidden units, which is the number of features. A tuple such as (100, 50) makes a deep
            machine, whose features are those of the last layer. With Gaussian visible units, one more feature per
            column comes first, and the last features are the probabilities of the clusters, if there are any.
        pretrain: Pretraining epochs of the first hidden layer of deep machines. Default: same as `epochs`.
        hidden_units: Type of the hidden units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian or
            gauss-bernoulli; the last two lie between -1 and 1. auto is spike-slab above one layer of gaussian units,
            otherwise binary. Features are the means of the hidden units.
        visible: Type of the visible units: auto, binary, spin, gaussian, spike-slab, truncated-gaussian,
            gauss-bernoulli, poisson, categorical. auto infers it from the data, and `visible_` holds the result. For
            a custom unit type, pass units, or a class or function that makes `n` units from `n`; the data are then not
            scaled.
        binarize: Threshold: values above it become 1, others 0. Default: off.
        interval: Interval of real values, such as (0, 1). Default: [0, 1] or the range of the data. By default, values
            outside are clipped with a warning; if you set an interval, they raise an error.
        columns: Column kinds of a DataFrame by name: real, count, binary or categorical. Default: inferred from
            their types and values; `print(model.schema_.describe())` shows the result.
        epochs: Number of passes over the data. Default: enough for 20,000 steps, from 50 to 300.
        batch_size: Number of rows per gradient step. Default: a quarter of the rows, from 10 to 100.
        objective: Training objective: default, tap, tap-average, tap-unique, tap-average-explicit,
            tap-unique-explicit, adaptive-tap, belief-propagation, relaxed-bp, cd, pcd.
            default is the objective of `tapmachine.fit`.
        n_sweeps: TAP or Gibbs sweeps per gradient step. Default: 10; 1 for cd; 20 for belief-propagation and
            relaxed-bp.
        n_particles: Number of TAP solutions or chains. Default: the batch size.
        start: Starting points of the TAP solutions: batch, data, noisy, random, persistent, chains.
        learning_rate: Initial learning rate, for values scaled to about 1. Default: chosen from the data.
        decay: Final learning rate as a fraction of the initial one.
        momentum: Momentum of the gradient steps.
        weight_decay: Coefficient of the L2 penalty on the weights.
        l1: Coefficient of the L1 penalty on the weights.
        centered: Whether to center the gradients. Default: where the units allow it.
        averaged: Whether to average the parameters over the last eighth of the steps.
        dtype: Data type of the parameters: float32, float64.
        device: cpu, cuda, or auto (a GPU if available).
        random_state: Random seed.
        verbose: Whether to show training progress; every epoch is then measured, also by TAP.

    Attributes:
        machine_: The fitted machine, in the units of the data.
        visible_: The visible unit type, and why it was chosen.
        schema_: Kind of each column, for a DataFrame with columns other than floats; otherwise None.
        history_: One dictionary per epoch, with `loss`, `gradient_norm` and more; about five of them, including the
            first and the last, have the `log_likelihood` of training rows and its `log_likelihood_method` (see
            `Monitor`).
        score_method_, score_error_: How ln Z of the scores was computed, `exact` or `annealed`, and its standard error
            in nats; computed on first access.
        components_: Weights of the first layer, (n_hidden, n_features); for q categories, (n_hidden, n_features·q).
        n_features_in_, feature_names_in_: As in scikit-learn.

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
        """Fit a new machine to rows, (n_samples, n_features).

        Args:
            X: The rows: an array, a DataFrame, AnnData, or a sparse matrix, which stays sparse. NaN marks a
                missing value; the machine is fitted to the observed values.
            y: Ignored.
            sample_weight: Weight of each row, (n_samples,). A row of weight 2 counts as two rows. Default: 1.
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
            warnings.warn(
                f"fit was interrupted after {len(history)} of {settings.all_epochs} epochs; the machine of the last "
                "complete epoch is kept",
                TrainingWarning,
                stacklevel=2,
            )
            raise interrupted
        return self

    def _train(self, training: Training, history: list[Record]) -> KeyboardInterrupt | None:
        """Train until finished or interrupted; if interrupted, restore the last complete epoch."""
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
        """Train for one more pass over some rows, at the final learning rate of the last pass.

        There is no pretraining. The first call infers the type of the visible units from its rows; pass `interval` if
        later rows have a wider range. Missing values and weights are treated as in `fit`.
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
                    "partial_fit cannot continue fit for Gaussian visible units, which are not trained in steps; call "
                    "fit with all rows, or partial_fit from the start"
                )
            settings = self._settings(
                1, decay=1.0, pretrain=0, seed=before.settings.seed, hidden_units=self._chosen_hidden()
            )
            kept = ("hidden", "visible", "interval", "binarize", "dtype")
            changed = [name for name in kept if getattr(settings, name) != getattr(before.settings, name)]
            if changed:
                raise ValueError(f"{changed[0]} has changed since the machine was created; call fit to start over")
            x, weights = self._more_rows(X, sample_weight)
            new = deepcopy(before.new)
        if settings.batch_size is not None:
            settings = replace(settings, batch_size=min(settings.batch_size, len(x)))
        measure = self._monitor(new, 1) if self.verbose else Monitor(n_starts=0)  # a pass may be over few rows
        trainer = make_trainer(settings, new, x, None, measure, weights)
        if before is not None:
            take_up(trainer.joint(), before.state)
        history.append(trainer.epoch() | {"epoch": len(history) + 1})
        seen = starts_from(x) if starts is None else torch.cat((starts, starts_from(x)))
        self._finish(LastTraining(settings, new, trainer.state()), history, spaced(seen, N_STARTS).clone())

    def _more_rows(self, X: Any, sample_weight: Any) -> tuple[Rows, Tensor | None]:
        """Rows for a machine that was made, and their weights."""
        sparse = self._sparse(X)
        if sparse is not None:
            lazy, weights = weighted_lazy_rows(sparse, sample_weight)
            return lazy.mapped(lambda part: self._rows(part).cpu().numpy()), weights
        array = self._array(X, gaps=True)
        rows = self._rows_with_gaps(array) if np.isnan(array).any() else self._rows(array)
        return weighted_rows(rows.to(self.machine_.device), array, sample_weight)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if training fails."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _chosen_hidden(self) -> str:
        """Hidden unit type of `partial_fit`, which cannot fit machines of tables."""
        return "binary" if self.hidden_units == "auto" else self.hidden_units

    def _settings(self, epochs: Any, **others: Any) -> Settings:
        values = {name: getattr(self, name) for name in _passed_on()} | {"epochs": epochs}
        values["columns"] = None  # which are those of a DataFrame
        values["visible"] = "auto" if callable(self.visible) else self.visible  # units are made by `_new_machine`
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
            raise ValueError("X has one sample (n_samples=1); expected at least two")
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
        self._starts = starts.long() if machine.layers[0].is_categorical and starts.dim() == 2 else starts
        self._double = in_double(machine)
        self._log_partition = None  # computed on first access
        self._draws = np.random.RandomState(training.settings.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the float64 copy and move tensors to the CPU, so that unpickling needs no GPU."""
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
    """Settings that are parameters of `RBM` under the same name."""
    parameters = inspect.signature(RBM.__init__).parameters
    return [declared.name for declared in fields(Settings) if declared.name in parameters]
