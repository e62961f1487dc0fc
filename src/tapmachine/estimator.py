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
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from tapmachine.likelihood import tap_log_likelihood
from tapmachine.likelihood.score import check_rows, in_double, log_weight, spaced
from tapmachine.recipes import NewMachine, make_machine, make_trainer, pick_device, prepare_rows
from tapmachine.sampling import gibbs
from tapmachine.settings import Settings
from tapmachine.training import Monitor, Trainer, TrainingState
from tapmachine.training.report import Reporter

Array = np.ndarray[Any, Any]

N_STARTS = 100  # rows that are kept: solutions and samples start from them
FLOATS = (np.float64, np.float32)


class DataWarning(UserWarning):
    """Something about data that their user should know."""


class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A Restricted Boltzmann Machine with binary hidden units, for scikit-learn: features, log-likelihoods, samples.

    It is trained as by `tapmachine.fit`, and behind it is a machine, `machine_`, for all else that the package does.
    With the same `random_state` all results are the same every time: the scores, too, and, unless it is given another
    `random_state`, those of `sample`.

    Args:
        n_hidden: number of hidden units, which is that of the features.
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
        random_state: of the weights, the order of the rows and all draws.
        verbose: whether to show the progress of training.

    Attributes:
        machine_: the machine, for data as they were given.
        visible_: the type of its visible units, and why.
        history_: a dictionary for each epoch, with `loss`, `gradient_norm` and more.
        components_: the weights, (n_hidden, n_features); for q categories, (n_hidden, n_features·q).
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
        n_hidden: int = 100,
        *,
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
            trainer = make_trainer(settings, new, x, None, self._monitor(new))
            history = []
            with Reporter(None, self.verbose, settings.epochs) as report:
                for _ in range(settings.epochs):
                    history.append(trainer.epoch())
                    report(history[-1])
            self._finish(_Training(settings, new, trainer.state()), history, spaced(x, N_STARTS).clone())
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One more pass over some rows, from where the last one ended, with the step size that it ended with.

        The first call picks the visible units by its rows. Give `interval`, if later ones will go further.
        """
        with self._all_or_nothing():
            self._pass_over(X, getattr(self, "_training", None))
        return self

    def _pass_over(self, X: Any, before: "_Training | None") -> None:
        history, starts = (list(self.history_), self._starts) if before else ([], None)
        if before is None:
            settings = self._settings(1, decay=1.0)
            x = self._first_rows(settings, X)
            new = self._new_machine(settings, x)
        else:
            settings = self._settings(1, decay=1.0, seed=before.settings.seed)
            kept = ("hidden", "visible", "interval", "binarise", "dtype")
            changed = [name for name in kept if getattr(settings, name) != getattr(before.settings, name)]
            if changed:
                raise ValueError(f"{changed[0]} has changed since the machine was made; use fit for another one")
            x, new = self._rows(self._array(X)), deepcopy(before.new)
        if settings.batch_size is not None:
            settings = replace(settings, batch_size=min(settings.batch_size, len(x)))
        trainer = make_trainer(settings, new, x, None, self._monitor(new))
        if before is not None:
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
            "visible", "binarise", "batch_size", "objective", "sweeps", "particles", "start", "learning_rate", "decay",
            "momentum", "weight_decay", "l1", "centred", "dtype",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names} | {"n_hidden": self.n_hidden, "epochs": epochs}
        for name in ("n_hidden", "epochs", "batch_size", "sweeps", "particles"):
            if given[name] is not None or name in ("n_hidden", "epochs"):
                given[name] = _whole_number(name, given[name])
        given["hidden"] = (given.pop("n_hidden"),)
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

    def _monitor(self, new: NewMachine) -> Monitor:
        return Monitor(n_starts=N_STARTS if self.verbose else 0, scale=new.scale, shift=new.shift)

    def _finish(self, training: "_Training", history: list[dict[str, float]], starts: Tensor) -> None:
        machine = training.new.in_units_of_data()
        self.machine_, self.visible_, self.history_ = machine, training.new.why, history
        self.components_ = machine.weights[0].detach().cpu().numpy().T.copy()
        self._n_features_out = self.components_.shape[0]
        self._training, self._starts = training, starts
        self._double = in_double(machine)
        self._log_partition: list[float] = []  # found when it is first asked for

    # ----- what a trained machine is good for

    def transform(self, X: Any) -> Array:
        """The means of the hidden units given each row, (n_samples, n_hidden), between 0 and 1."""
        check_is_fitted(self)
        array = self._array(X)
        hidden = self._double.conditional(1, [self._states(array), None]).mean
        return hidden.detach().cpu().numpy().astype(array.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """The means of the visible units given values of the hidden ones, (n_samples, n_features).

        Of categorical units it is the most probable category.
        """
        check_is_fitted(self)
        hidden = check_array(X, dtype=FLOATS)
        if hidden.shape[1] != self._n_features_out:
            raise ValueError(f"X has {hidden.shape[1]} columns, but there are {self._n_features_out} hidden units")
        values = torch.tensor(hidden, dtype=self._double.dtype, device=self._double.device)
        visible = self._double.conditional(0, [None, values]).mean
        visible = visible.argmax(-1) if visible.dim() > 2 else visible
        return visible.detach().cpu().numpy().astype(hidden.dtype, copy=False)

    def free_energy(self, X: Any) -> Array:
        """−ln of the weight of each row with the hidden units summed over, (n_samples,): ln P(x) = −F(x) − ln Z."""
        check_is_fitted(self)
        return -log_weight(self._double, self._states(self._array(X))).cpu().numpy()

    def score_samples(self, X: Any) -> Array:
        """ln P(x) of each row in nats, (n_samples,), deterministically.

        ln Z is TAP's, a log-sum-exp over the solutions from 100 of the training rows; `ais_log_likelihood(machine_, x)`
        gives it with an error bar.
        """
        check_is_fitted(self)
        weights = -self.free_energy(X)
        if not self._log_partition:
            found = tap_log_likelihood(self.machine_, self._starts).log_sum_exp
            self._log_partition.append(float(found.log_partition))
        return weights - self._log_partition[0]

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of the rows in nats."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, n_sweeps: int = 200, random_state: Any = None) -> Array:
        """Draws, (n_samples, n_features), by Gibbs chains that start from rows of the training data.

        Args:
            n_samples: how many.
            n_sweeps: sweeps of each chain.
            random_state: of the draws; the estimator's, unless given.
        """
        check_is_fitted(self)
        seeds = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(self.machine_.device).manual_seed(int(seeds.randint(2**31 - 1)))
        rows = torch.from_numpy(seeds.randint(len(self._starts), size=n_samples)).to(self.machine_.device)
        start = check_rows(self.machine_, self._starts.to(rows.device)[rows])
        visible = gibbs(self.machine_, start, n_sweeps, generator)[0]
        states = visible.argmax(-1) if visible.dim() > 2 else visible
        return states.cpu().numpy().astype(np.float64)

    # ----- data

    def _array(self, X: Any, reset: bool = False) -> Array:
        found = validate_data(self, X, reset=reset, dtype=FLOATS, accept_sparse="csr")
        array: Array = found.toarray() if hasattr(found, "toarray") else found
        return array

    def _rows(self, array: Array) -> Tensor:
        """Rows for the machine; what lies outside an interval that the data set is moved to its ends."""
        machine = self.machine_
        settings = self._training.settings
        x = prepare_rows(settings, array).to(machine.device)
        units = machine.units()[0]
        if units.n_states() is not None or settings.interval is not None:
            return x
        lower, upper = (bound.detach() for bound in units.bounds())
        outside = (x < lower) | (x > upper)
        count = int(outside.sum())
        if not count:
            return x
        row, column = outside.nonzero()[0].tolist()
        warnings.warn(
            f"{count} value{'s' if count > 1 else ''} outside the interval of the training data moved to its ends, the "
            f"first in row {row}, column {column} ({x[row, column]:g}); to widen it, use interval=(low, high)",
            DataWarning,
            stacklevel=2,
        )
        return torch.clamp(x, lower, upper)

    def _states(self, array: Array) -> Tensor:
        """Checked, in float64."""
        return check_rows(self.machine_, self._rows(array)).to(self._double.dtype)

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
        super().__setstate__(state)
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
    """Goes on with chains and momenta; those that belong to batches of another size begin anew."""
    own = trainer.state()
    kept = {
        name: z for name, z in state.tensors.items() if name not in own.tensors or z.shape == own.tensors[name].shape
    }
    device = {"device": trainer.machine.device.type, "scheduler": own.values["scheduler"]}
    if device["device"] != state.values["device"]:  # random numbers of another kind
        kept["generator.draws"] = own.tensors["generator.draws"]
    trainer.restore(TrainingState(own.tensors | kept, state.values | device))
