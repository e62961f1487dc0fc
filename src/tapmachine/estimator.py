"""The scikit-learn estimator."""

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.utils import Tags, check_random_state
from torch import Tensor

from tapmachine.estimator_uses import TrainedMachine
from tapmachine.likelihood.score import in_double, spaced
from tapmachine.recipes import NewMachine, make_machine, make_trainer, pick_device, prepare_rows
from tapmachine.settings import Settings
from tapmachine.training import Monitor, PretrainingTrainer, Trainer, TrainingState, TrainingWarning
from tapmachine.training.monitor import Record
from tapmachine.training.report import Reporter

N_STARTS = 100  # rows that are kept: solutions and samples start from them
N_MEASURED = 5  # epochs of a training, besides the first


class RBM(TrainedMachine):
    """A Restricted or Deep Boltzmann Machine with binary hidden units, for scikit-learn: features, scores, samples.

    It is trained as by `tapmachine.fit`, and behind it is a machine, `machine_`, for all else that the package does.
    With the same `random_state` all results are the same every time, the scores and the sequence of samples included.
    A training that is interrupted keeps the machine of the last complete epoch, which `partial_fit` can train further.

    Args:
        n_hidden: number of hidden units, which is that of the features; several, such as (100, 50), for a deep machine,
            whose last layer the features are.
        pretrain: epochs for each layer of a deep machine, one by one, before `fit` trains all together; a fifth of the
            epochs, unless given.
        visible: the type of the visible units: binary, spin, gaussian, truncated-gaussian, gauss-bernoulli or
            categorical; `auto` looks at the data, and `visible_` says what it picked.
        binarise: values above this become 1, the others 0.
        interval: that values of truncated units lie in; [0, 1] or that of the data, unless given. Values outside an
            interval that the data set are moved to its ends, with a warning; outside a given one they are an error.
        epochs: passes over the data.
        batch_size: rows of each step; 1/50 of the rows, but 10 to 100, unless given.
        objective: tap, herded, cd or pcd; `default` is what `fit` uses.
        sweeps, particles, start: of the objective.
        learning_rate: the first step size, for values scaled to about 1; one that suits the data, unless given.
        decay: what is left of it in the end.
        momentum, weight_decay, l1, centred: as for `paper_sgd` and `fit`.
        dtype: in which it is trained, float32 or float64.
        device: cpu, cuda, or auto: a GPU, if there is one.
        random_state: random seed.
        verbose: whether to show the progress of training; then every epoch is measured, by TAP as well.

    Attributes:
        machine_: the machine, for data as they were given.
        visible_: the type of its visible units, and why.
        history_: a dictionary for each epoch, with `loss`, `gradient_norm` and more; about five of them, the first and
            the last included, with the `log_likelihood` of training rows and its `log_likelihood_method` (see
            `Monitor`).
        score_method_, score_error_: how ln Z of the scores was found, `exact` or `annealed`, and its standard error in
            nats; computed when first asked for.
        components_: the weights, (n_hidden, n_features), of the first layer; for q categories, (n_hidden,
            n_features·q).
        n_features_in_, feature_names_in_: as in all of scikit-learn.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from tapmachine import RBM
        >>> x = load_digits().data / 16
        >>> RBM(n_hidden=16, binarise=0.5, epochs=2).fit_transform(x).shape
        (1797, 16)
    """

    def __init__(
        self,
        n_hidden: int | tuple[int, ...] = 100,
        *,
        pretrain: int | None = None,
        visible: str = "auto",
        binarise: float | None = None,
        interval: tuple[float, float] | None = None,
        epochs: int = 50,
        batch_size: int | None = None,
        objective: str = "default",
        sweeps: int | None = None,
        particles: int | None = None,
        start: str = "batch",
        learning_rate: float | None = None,
        decay: float = 0.01,
        momentum: float = 0.5,
        weight_decay: float = 0.0,
        l1: float = 0.0,
        centred: bool | None = None,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.n_hidden = n_hidden
        self.pretrain = pretrain
        self.visible = visible
        self.binarise = binarise
        self.interval = interval
        self.epochs = epochs
        self.batch_size = batch_size
        self.objective = objective
        self.sweeps = sweeps
        self.particles = particles
        self.start = start
        self.learning_rate = learning_rate
        self.decay = decay
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.l1 = l1
        self.centred = centred
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ----- training

    def fit(self, X: Any, y: Any = None) -> Self:
        """Trains a new machine on rows, (n_samples, n_features)."""
        settings = self._settings(self.epochs)
        with self._all_or_nothing():
            x = self._first_rows(settings, X)
            new = self._new_machine(settings, x)
            trainer = make_trainer(settings, new, x, None, self._monitor(new, settings.all_epochs))
            history: list[Record] = []
            interrupted = self._train(trainer, settings.all_epochs, history)
            joint = trainer if isinstance(trainer, Trainer) else trainer.joint_trainer()
            self._finish(_Training(settings, new, joint.state()), history, spaced(x, N_STARTS).clone())
        if interrupted is not None:
            warnings.warn(
                f"fit was interrupted after {len(history)} of {settings.all_epochs} epochs; the machine of the last "
                "complete epoch is kept",
                TrainingWarning,
                stacklevel=2,
            )
            raise interrupted
        return self

    def _train(
        self, trainer: Trainer | PretrainingTrainer, epochs: int, history: list[Record]
    ) -> KeyboardInterrupt | None:
        """Trains to the end, or until it is interrupted: then it goes back to the end of the last epoch."""
        state = None
        try:
            with Reporter(None, self.verbose, epochs) as report:
                while trainer.finished < epochs:
                    record = trainer.epoch()
                    state = trainer.state()
                    history.append(record)
                    report(record)
        except KeyboardInterrupt as interrupt:
            if state is None:
                raise
            trainer.restore(state)
            return interrupt
        return None

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One more pass over some rows, from where the last one ended, with the step size that it ended with.

        There is no pretraining.

        The first call picks the visible units by its rows. Give `interval`, if later ones will go further.
        """
        with self._all_or_nothing():
            self._pass_over(X, getattr(self, "_training", None))
        return self

    def _pass_over(self, X: Any, before: "_Training | None") -> None:
        history, starts = (list(self.history_), self._starts) if before else ([], None)
        if before is None:
            settings = self._settings(1, decay=1.0, pretrain=0)
            x = self._first_rows(settings, X)
            new = self._new_machine(settings, x)
        else:
            settings = self._settings(1, decay=1.0, pretrain=0, seed=before.settings.seed)
            kept = ("hidden", "visible", "interval", "binarise", "dtype")
            changed = [name for name in kept if getattr(settings, name) != getattr(before.settings, name)]
            if changed:
                raise ValueError(f"{changed[0]} has changed since the machine was made; use fit for another one")
            x, new = self._rows(self._array(X)), deepcopy(before.new)
        if settings.batch_size is not None:
            settings = replace(settings, batch_size=min(settings.batch_size, len(x)))
        measure = self._monitor(new, 1) if self.verbose else Monitor(n_starts=0)  # a pass may be over few rows
        trainer = make_trainer(settings, new, x, None, measure)
        if before is not None and isinstance(trainer, Trainer):
            _take_up(trainer, before.state)
        history.append(trainer.epoch() | {"epoch": len(history) + 1})
        seen = spaced(x, N_STARTS) if starts is None else torch.cat((starts, spaced(x, N_STARTS)))
        self._finish(_Training(settings, new, trainer.state()), history, spaced(seen, N_STARTS).clone())

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A training that fails, or is interrupted, leaves the estimator as it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _settings(self, epochs: Any, **others: Any) -> Settings:
        names = (
            "visible", "binarise", "pretrain", "batch_size", "objective", "sweeps", "particles", "start",
            "learning_rate", "decay", "momentum", "weight_decay", "l1", "centred", "dtype",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names} | {"epochs": epochs}
        for name in ("epochs", "pretrain", "batch_size", "sweeps", "particles"):
            if given[name] is not None or name == "epochs":
                given[name] = _whole_number(name, given[name])
        layers = self.n_hidden if isinstance(self.n_hidden, tuple | list) else (self.n_hidden,)
        given["hidden"] = tuple(_whole_number("n_hidden", size) for size in layers)
        given["interval"] = None if self.interval is None else tuple(float(end) for end in self.interval)
        if "seed" not in others:
            given["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Settings("given", **given | others)

    def _first_rows(self, settings: Settings, X: Any) -> Tensor:
        array = self._array(X, reset=True)
        if len(array) == 1:
            raise ValueError("X has one sample (n_samples=1); a machine is trained on two or more")
        return prepare_rows(settings, array).to(pick_device(self.device))

    def _new_machine(self, settings: Settings, x: Tensor) -> NewMachine:
        new = make_machine(settings, x)
        new.machine.to(x.device)
        if self.verbose:
            print(f"visible units {new.why}")
        return new

    def _monitor(self, new: NewMachine, epochs: int) -> Monitor:
        n_starts, every = (N_STARTS, 1) if self.verbose else (0, max(1, epochs // N_MEASURED))
        return Monitor(n_starts, likelihood=True, every=every, scale=new.scale, shift=new.shift)

    def _finish(self, training: "_Training", history: list[Record], starts: Tensor) -> None:
        machine = training.new.in_units_of_data()
        self.machine_, self.visible_, self.history_ = machine, training.new.why, history
        self.components_ = machine.weights[0].detach().cpu().numpy().T.copy()
        self._n_features_out = machine.sizes[-1]
        self._training, self._starts = training, starts
        self._double = in_double(machine)
        self._log_partition = None  # found when it is first asked for
        self._draws = np.random.RandomState(training.settings.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the copy in float64, and on the CPU: what was trained on a GPU can be read without one."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "machine_" in state:
            training = state["_training"]
            new = replace(training.new, machine=deepcopy(training.new.machine).cpu())
            state |= {"machine_": deepcopy(self.machine_).cpu(), "_starts": self._starts.cpu()}
            state["_training"] = training._replace(new=new)
            state.pop("_double")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"pretrain": 0} | state)  # of the first versions, which had none
        if "machine_" in state:
            self._double = in_double(self.machine_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class _Training(NamedTuple):
    """What `partial_fit` goes on from."""

    settings: Settings
    new: NewMachine
    state: TrainingState


def _whole_number(name: str, value: Any) -> int:
    """NumPy's, too, as a search over a grid of them gives."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; it must be a whole number") from None


def _take_up(trainer: Trainer, state: TrainingState) -> None:
    """Goes on with chains and momenta; where their number is another now, they begin anew."""
    own = trainer.state()
    kept = {
        name: z for name, z in state.tensors.items() if name not in own.tensors or z.shape == own.tensors[name].shape
    }
    device = {"device": trainer.machine.device.type, "scheduler": own.values["scheduler"]}
    if device["device"] != state.values["device"]:  # random numbers of another kind
        kept["generator.draws"] = own.tensors["generator.draws"]
    trainer.restore(TrainingState(own.tensors | kept, state.values | device))
