"""Training of the estimator: its parameters as settings, new machines, and further passes over the data."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tapmachine.accelerator.distributed import pick_device
from tapmachine.accelerator.precision import usual_modes
from tapmachine.apps.estimator.input import lazy_rows, plain_rows, read, states, weighted
from tapmachine.data.checks import check_count
from tapmachine.data.rows import Rows, has_gaps, spaced
from tapmachine.likelihood.unbiased import LogPartition, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import fingerprint
from tapmachine.runs.registry import make_objective
from tapmachine.runs.settings import Settings
from tapmachine.tables.codec import Codec
from tapmachine.tables.frames import Frame, library_of
from tapmachine.tables.machine import ScaledMachine, make_machine, make_training, warn_of_unused
from tapmachine.training import Monitor, Objective, Trainer, TrainingOptions
from tapmachine.training.gaps import check_columns, fill_columns
from tapmachine.training.loop import run_epochs
from tapmachine.training.monitor import Record
from tapmachine.training.progress import in_notebook
from tapmachine.training.state import TrainingState

N_STARTS = 100  # number of stored rows, used as starting points of solutions and samples
N_MEASURED = 5  # number of epochs after the first at which the log-likelihood is measured


class Trained(NamedTuple):
    """Result of training, which `partial_fit` continues.

    Attributes:
        settings: Settings of the training run.
        new: Trained machine and the scaling of its data.
        state: State of the trainer.
        history: Records of all epochs.
        starts: Rows from which solutions and samples start.
    """

    settings: Settings
    new: ScaledMachine
    state: TrainingState
    history: list[Record]
    starts: Tensor

    def start_rows(self, machine: BoltzmannMachine) -> Tensor:
        """Return the rows from which solutions and samples start, as states of the visible units."""
        return machine.layers[0].from_data(self.starts.to(machine.device))

    def on_cpu(self) -> "Trained":
        """Return a copy whose machine and rows are on the CPU."""
        new = replace(self.new, machine=deepcopy(self.new.machine).cpu())
        return self._replace(new=new, starts=self.starts.cpu())


def log_partition(model: Any) -> LogPartition:
    """Return ln Z of a fitted machine, which is computed on the first call and after changes of the machine."""
    check_is_fitted(model)
    digest = fingerprint(model.machine_)
    known, partition = model._log_partition or ("", None)
    if known != digest:
        partition = unbiased_log_partition(model.machine_, model._trained.start_rows(model.machine_))
        model._log_partition = digest, partition
    assert isinstance(partition, LogPartition)
    return partition


@contextmanager
def all_or_nothing(model: Any) -> Iterator[None]:
    """Restore all attributes of an estimator if training fails. Training does not depend on modes of torch."""
    before = dict(model.__dict__)
    try:
        with usual_modes():
            yield
    except BaseException:
        model.__dict__.clear()
        model.__dict__.update(before)
        raise


def settings_of(model: Any, epochs: Any, **others: Any) -> Settings:
    """Return the parameters of an estimator as settings, with other values for some of them."""
    parameters = model.get_params(deep=False)
    values = {own.name: parameters[own.name] for own in fields(Settings) if own.name in parameters}
    values |= {"epochs": epochs, "columns": None}  # the kinds of columns are in the codec
    values["visible"] = "auto" if callable(model.visible) else model.visible  # custom units are passed on as they are
    values["objective"] = "default" if isinstance(model.objective, Objective) else model.objective
    layers = model.n_hidden if isinstance(model.n_hidden, tuple | list) else (model.n_hidden,)
    values["hidden"] = tuple(check_count("n_hidden", size) for size in layers)
    if model.pretrain is not None:
        values["pretrain"] = check_count("pretrain", model.pretrain, 0)
    values["interval"] = None if model.interval is None else tuple(float(end) for end in model.interval)
    if "seed" not in others:
        values["seed"] = int(check_random_state(model.random_state).randint(2**31 - 1))
    return Settings("given", **values | others)


def new_codec(model: Any, X: Any) -> Codec:
    """Return the codec of the training data of an estimator, which are a `Frame` or rows of numbers."""
    if model.handle_unknown not in ("missing", "error"):
        raise ValueError(f"handle_unknown is {model.handle_unknown!r}; expected 'missing' or 'error'")
    is_auto = isinstance(model.visible, str) and model.visible == "auto"
    return Codec.infer(
        X,
        model.columns,
        is_auto and model.binarize is None and model.interval is None,
        binarize=model.binarize,
        has_states=isinstance(model.visible, str) and model.visible == "categorical",
        unknown=model.handle_unknown,
    )


def train(model: Any, X: Any, sample_weight: Any) -> tuple[Trained, KeyboardInterrupt | None]:
    """Train a new machine. If training is interrupted, return the last complete epoch and the interrupt."""
    settings = settings_of(model, model.epochs)
    x, weights = _first_rows(model, X, sample_weight)
    new = _new_machine(model, settings, x, weights)
    if new.is_fitted:
        warn_of_unused(settings, ["objective"] if isinstance(model.objective, Objective) else [])
    settings = settings.for_rows(len(x))
    n_starts, every = (N_STARTS, 1) if model.verbose else (0, max(1, settings.all_epochs // N_MEASURED))
    monitor = _monitor(model, new, n_starts, every)
    training = make_training(
        new, x, _options(model, settings, monitor, weights), pretrain_epochs=settings.pretrain_epochs
    )
    state, history, interrupted = None, list[Record](), None

    def keep(record: Record) -> None:
        nonlocal state
        state = training.state()
        history.append(record)

    try:
        run_epochs(training, [keep], progress=model.verbose or in_notebook())
    except KeyboardInterrupt as interrupt:
        if state is None:
            raise
        training.restore(state)
        interrupted = interrupt
    return Trained(settings, new, training.joint().state(), history, _starts(x)), interrupted


def train_further(model: Any, X: Any, sample_weight: Any) -> Trained:
    """Train for one epoch on more rows, or on the first rows of a new machine."""
    before: Trained | None = getattr(model, "_trained", None)
    # The default machine of a table is fitted to all rows at once, and cannot be trained by gradient steps.
    hidden = "binary" if model.hidden_units == "auto" else model.hidden_units
    options: dict[str, Any] = {"decay": 1.0, "pretrain": 0, "hidden_units": hidden}
    if before is None:
        settings = settings_of(model, 1, **options)
        x, weights = _first_rows(model, X, sample_weight)
        new = _new_machine(model, settings, x, weights)
    else:
        if before.new.is_fitted:
            raise ValueError(
                "partial_fit cannot continue the fit of a table, which does not use gradient steps; "
                "call fit with all rows, or use partial_fit from the start"
            )
        settings = settings_of(model, 1, seed=before.settings.seed, **options)
        kept = ("hidden", "visible", "interval", "binarize", "dtype")
        changed = [name for name in kept if getattr(settings, name) != getattr(before.settings, name)]
        if changed:
            raise ValueError(
                f"{changed[0]} has changed since the machine was first trained; call fit to train a new machine"
            )
        x, weights = _more_rows(model, X, sample_weight)
        new = deepcopy(before.new)
    if settings.batch_size is not None:
        settings = replace(settings, batch_size=min(settings.batch_size, len(x)))
    monitor = _monitor(model, new, N_STARTS, 1) if model.verbose else Monitor(n_starts=0)
    trainer = make_training(new, x, _options(model, settings, monitor, weights))
    if before is not None:
        joint = trainer.joint()
        assert isinstance(joint, Trainer)
        _take_up(joint, before.state)
    history = [] if before is None else before.history
    history = [*history, trainer.epoch() | {"epoch": len(history) + 1}]
    seen = _starts(x) if before is None else torch.cat((before.starts, _starts(x)))
    return Trained(settings, new, trainer.state(), history, spaced(seen, N_STARTS).clone())


def _monitor(model: Any, new: ScaledMachine, n_starts: int, every: int) -> Monitor:
    log_scale = None if model._codec.schema is None else model._codec.log_scale
    return Monitor(n_starts, True, every=every, scale=new.scale, shift=new.shift, log_scale=log_scale)


def _options(model: Any, settings: Settings, monitor: Monitor, weights: Tensor | None) -> TrainingOptions:
    objective = model.objective if isinstance(model.objective, Objective) else make_objective(settings)
    return TrainingOptions.of(settings, objective=objective, weights=weights, monitor=monitor)


def _first_rows(model: Any, X: Any, sample_weight: Any) -> tuple[Rows, Tensor | None]:
    """Infer the codec of an estimator from its training data, and prepare rows and weights."""
    frame = None if library_of(X) is None else Frame.of(X)
    model._codec = codec = new_codec(model, X if frame is None else frame)
    if codec.is_table:
        assert frame is not None
        rows = codec.encode(frame)
        model.feature_names_in_, model.n_features_in_ = np.array(frame.names, dtype=object), len(frame.names)
    else:
        rows = plain_rows(model, X, reset=True)
    if rows.shape[0] == 1:
        raise ValueError("X has one sample (n_samples=1); expected at least two samples")
    if issparse(rows):
        matrix, weights = weighted(rows, sample_weight, rows)
        return codec.training_rows(lazy_rows(matrix)), weights
    x = codec.training_rows(rows)
    assert isinstance(x, Tensor)
    x = x.to(pick_device(model.device))
    if has_gaps(x):
        check_columns(x.isnan(), getattr(model, "feature_names_in_", None))
    return weighted(x, sample_weight, rows)


def _more_rows(model: Any, X: Any, sample_weight: Any) -> tuple[Rows, Tensor | None]:
    """Prepare rows and weights for further training of the fitted machine."""
    if not issparse(X):
        table = read(model, X)
        return weighted(table.states, sample_weight, table.rows)
    matrix, weights = weighted(plain_rows(model, X), sample_weight, X)
    return lazy_rows(matrix).mapped(lambda part: states(model, part).cpu().numpy()), weights


def _new_machine(model: Any, settings: Settings, x: Rows, weights: Tensor | None) -> ScaledMachine:
    schema = model._codec.schema if model._codec.is_coded or model.columns else None
    units = model.visible if callable(model.visible) else None
    new = make_machine(settings, x, units=units, schema=schema, weights=weights, seed=settings.seed)
    if schema is not None:
        new = replace(new, why="; ".join([*schema.describe().splitlines(), *new.why.split("; ")[1:]]))
    new.machine.to(pick_device(model.device))
    if model.verbose:
        print(f"visible units {new.why}")
    return new


def _starts(x: Rows) -> Tensor:
    """Copy evenly spaced rows as starting points. Missing values are replaced by values observed in the same column."""
    if isinstance(x, Tensor) and has_gaps(x):
        x = fill_columns(x)
    return spaced(x, N_STARTS).clone()


def _take_up(trainer: Trainer, state: TrainingState) -> None:
    """Restore the chains and momentum of an earlier training run. Chains restart if their number has changed."""
    own = trainer.state()
    kept = {
        name: z for name, z in state.tensors.items() if name not in own.tensors or z.shape == own.tensors[name].shape
    }
    kept.pop("completions", None)  # completions belong to other rows
    device = {"device": trainer.machine.device.type, "scheduler": own.values["scheduler"]}
    if device["device"] != state.values["device"]:  # generators of different devices are incompatible
        kept["generator.draws"] = own.tensors["generator.draws"]
    trainer.restore(TrainingState(own.tensors | kept, state.values | device))
