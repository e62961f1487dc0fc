"""The scikit-learn estimator."""

import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from tapmachine.likelihood import tap_log_likelihood
from tapmachine.likelihood.score import check_rows, in_double, log_weight, spaced
from tapmachine.recipes import NewMachine, Settings, make_machine, make_trainer, prepare_rows
from tapmachine.sampling import gibbs
from tapmachine.training import Monitor, Trainer, TrainingState
from tapmachine.training.report import Reporter

Array = np.ndarray[Any, Any]

N_STARTS = 100  # rows that are kept: solutions and samples start from them
FLOATS = (np.float64, np.float32)


class DataWarning(UserWarning):
    """Something about data that their user should know."""


class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A Restricted Boltzmann Machine with binary hidden units, for scikit-learn: features, log-likelihoods, samples.

    It is trained by `tapmachine.fit` and behind it is a machine, `machine_`, for all else that the package does. With
    the same `random_state` everything but `sample` gives the same result every time, the scores, too.

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
        components_: the weights, (n_hidden, n_features).
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
        new, x = self._begin(settings, X)
        trainer = make_trainer(settings, new, x, None, self._monitor(new))
        with Reporter(None, self.verbose, self.epochs) as report:
            for _ in range(self.epochs):
                self.history_.append(trainer.epoch())
                report(self.history_[-1])
        self._finish(new, x, trainer)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One more pass over some rows, from where the last one ended, with the step size that it ended with.

        The first call picks the visible units by its rows. Give `interval`, if later ones will go further.
        """
        settings = self._settings(1, decay=1.0)
        before: tuple[NewMachine, TrainingState] | None = getattr(self, "_training", None)
        if before is None:
            new, x = self._begin(settings, X)
        else:
            new, x = before[0], self._rows(self._array(X))
        if len(x) < (settings.batch_size or 1):
            settings = self._settings(1, decay=1.0, batch_size=len(x))
        trainer = make_trainer(settings, new, x, None, self._monitor(new))
        if before is not None:
            _take_up(trainer, before[1])
        record = trainer.epoch()
        self.history_.append(record | {"epoch": len(self.history_) + 1})
        self._finish(new, x, trainer)
        return self

    def _settings(self, epochs: int, **others: Any) -> Settings:
        if isinstance(self.n_hidden, bool) or not isinstance(self.n_hidden, int | np.integer):
            raise ValueError(f"n_hidden is {self.n_hidden!r}; it must be a whole number, 1 or more")
        names = (
            "visible", "binarise", "batch_size", "objective", "sweeps", "particles", "start", "learning_rate", "decay",
            "momentum", "weight_decay", "l1", "centred", "dtype",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names} | {"hidden": (int(self.n_hidden),), "epochs": epochs}
        given["interval"] = None if self.interval is None else tuple(self.interval)
        given["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Settings("given", **given | others)

    def _begin(self, settings: Settings, X: Any) -> tuple[NewMachine, Tensor]:
        array = self._array(X, reset=True)
        if len(array) == 1:
            raise ValueError("X has one sample (n_samples=1); a machine is trained on two or more")
        x = prepare_rows(settings, array)
        new = make_machine(settings, x)
        new.machine.to(_device(self.device))
        self.visible_ = new.why
        self.history_: list[dict[str, float]] = []
        self.__dict__.pop("_training", None)
        if self.verbose:
            print(f"visible units {new.why}")
        return new, x.to(new.machine.device)

    def _monitor(self, new: NewMachine) -> Monitor:
        return Monitor(n_starts=N_STARTS if self.verbose else 0, scale=new.scale)

    def _finish(self, new: NewMachine, x: Tensor, trainer: Trainer) -> None:
        self._training = new, trainer.state()
        self.machine_ = new.in_units_of_data()
        self.components_ = self.machine_.weights[0].detach().cpu().numpy().T.copy()
        self._n_features_out = self.components_.shape[0]
        self._starts = spaced(x, N_STARTS)
        self._double = in_double(self.machine_)
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
        rows = torch.from_numpy(seeds.randint(len(self._starts), size=n_samples)).to(self._starts.device)
        start = check_rows(self.machine_, self._starts[rows])
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
        x = prepare_rows(self._settings(0), array).to(machine.device)
        units = machine.units()[0]
        if units.n_states() is not None or self.interval is not None:
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
            stacklevel=4,
        )
        return torch.clamp(x, lower, upper)

    def _states(self, array: Array) -> Tensor:
        """Checked, in float64."""
        return check_rows(self.machine_, self._rows(array)).to(self._double.dtype)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _take_up(trainer: Trainer, state: TrainingState) -> None:
    """Goes on with chains and momenta; those that belong to batches of another size begin anew."""
    own, scheduler, kept = trainer.state().tensors, trainer.state().values["scheduler"], state.tensors
    tensors = {name: z if name not in own or z.shape == own[name].shape else own[name] for name, z in kept.items()}
    trainer.restore(TrainingState(tensors, state.values | {"scheduler": scheduler}))
