"""From words to parts: the settings of a training as a user writes them down, checked together, and what they make."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine, dbm
from tapmachine.training import (
    CD,
    PCD,
    FromBatch,
    FromData,
    Herded,
    HerdedPCD,
    NoisyBatch,
    Objective,
    Persistent,
    RandomPoints,
    Start,
    TAPObjective,
)
from tapmachine.units import Binary, Categorical, Gaussian, Spin, TruncatedGaussBernoulli, TruncatedGaussian, Units

MANY_ZEROS = 0.05  # share of values that are exactly 0, beyond which they are taken for a state of their own

OBJECTIVES = ("default", "tap", "herded", "cd", "pcd")
STARTS: dict[str, Callable[[], Start]] = {
    "batch": FromBatch,
    "data": FromData,
    "noisy": NoisyBatch,
    "random": RandomPoints,
    "persistent": Persistent,
    "herded": Herded,
}
VISIBLE = ("auto", "binary", "spin", "gaussian", "truncated-gaussian", "gauss-bernoulli", "categorical")
HIDDEN: dict[str, Callable[[int], Units]] = {"binary": Binary, "spin": Spin, "gaussian": Gaussian}


class SettingsError(ValueError):
    """Settings that do not make sense, by themselves or together."""


@dataclass(frozen=True)
class Settings:
    """What a training run depends on, all of it.

    Attributes:
        data: a named data set or a file; see `datasets.read`.
        validation: a file with rows to score beside; or the share of the rows that is held out for it, the last ones.
        binarise: values above this become 1, the others 0.
        visible: the visible units; `auto` looks at the data.
        hidden: how many units each hidden layer has.
        hidden_units: of which type.
        epochs, batch_size, seed: as for `fit`.
        objective: `tap`, `herded`, `cd`, `pcd`, or `default`.
        sweeps: of the objective: TAP's, or of its chains.
        particles: solutions or chains; as many as rows in a batch, unless given.
        start: where TAP's solutions start.
        learning_rate: the first step size; one that suits the data, unless given.
        decay: what is left of it in the end.
        momentum, weight_decay, l1, centred: as for `paper_sgd` and `fit`.
        dtype: of the parameters.
        measure_every: epochs between measurements.
        save_every: epochs between checkpoints.
        keep_every: epochs between machines that are kept, for the landscape; 0 for none.
    """

    data: str
    validation: str | float | None = None
    binarise: float | None = None
    visible: str = "auto"
    hidden: tuple[int, ...] = (100,)
    hidden_units: str = "binary"
    epochs: int = 50
    batch_size: int = 100
    objective: str = "default"
    sweeps: int | None = None
    particles: int | None = None
    start: str = "batch"
    learning_rate: float | None = None
    decay: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 0.0
    l1: float = 0.0
    centred: bool | None = None
    seed: int = 0
    dtype: str = "float32"
    measure_every: int = 1
    save_every: int = 1
    keep_every: int = 0

    def __post_init__(self) -> None:
        checks = [
            ("hidden", bool(self.hidden) and all(n >= 1 for n in self.hidden), "it must be whole numbers, 1 or more"),
            ("visible", self.visible in VISIBLE, f"it must be one of {', '.join(VISIBLE)}"),
            ("hidden_units", self.hidden_units in HIDDEN, f"it must be one of {', '.join(HIDDEN)}"),
            ("objective", self.objective in OBJECTIVES, f"it must be one of {', '.join(OBJECTIVES)}"),
            ("start", self.start in STARTS, f"it must be one of {', '.join(STARTS)}"),
            ("dtype", self.dtype in ("float32", "float64"), "it must be float32 or float64"),
            ("decay", 0 < self.decay <= 1, "it must be greater than 0, and 1 at most"),
            ("momentum", 0 <= self.momentum < 1, "it must be 0 or more, and less than 1"),
            ("learning_rate", self.learning_rate is None or self.learning_rate > 0, "it must be greater than 0"),
            ("keep_every", self.keep_every >= 0, "it must be 0 or more"),
            *((name, getattr(self, name) >= 0, "it must be 0 or more") for name in ("weight_decay", "l1", "epochs")),
            *(
                (name, getattr(self, name) >= 1, "it must be 1 or more")
                for name in ("batch_size", "measure_every", "save_every")
            ),
            *(
                (name, getattr(self, name) is None or getattr(self, name) >= 1, "it must be 1 or more")
                for name in ("sweeps", "particles")
            ),
            (
                "validation",
                not isinstance(self.validation, float) or 0 < self.validation < 1,
                "it must be a file, or a share between 0 and 1",
            ),
        ]
        for name, good, rule in checks:
            if not good:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; {rule}")
        if self.start != "batch" and self.objective != "tap":
            raise SettingsError(f"start is {self.start!r}, which is for the objective 'tap' only")
        if self.objective == "default" and (self.sweeps or self.particles):
            raise SettingsError("sweeps and particles go with an objective of your choice; say which")

    def as_json(self) -> dict[str, Any]:
        """As a run folder holds them."""
        return asdict(self) | {"hidden": list(self.hidden)}

    def changes_from(self, other: "Settings") -> list[str]:
        """What differs, in words."""
        mine, theirs = self.as_json(), other.as_json()
        return [f"{name} was {theirs[name]!r} and is {mine[name]!r}" for name in mine if mine[name] != theirs[name]]


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a JSON file, as keyword arguments of `Settings`."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SettingsError(f"{path}: is not JSON: {error}") from None
    if isinstance(found, dict) and found.keys() == {"format", "settings"}:  # of a run folder
        found = found["settings"]
    if not isinstance(found, dict):
        raise SettingsError(f"{path}: holds no settings by name")
    return check_names(found, str(path))


def check_names(found: dict[str, Any], where: str) -> dict[str, Any]:
    """The same, if all of them are settings of the right kind."""
    hints = get_type_hints(Settings)
    for name, value in found.items():
        if name not in hints:
            raise SettingsError(f"{where}: there is no setting {name!r}; another version may have written it")
        kinds = get_args(hints[name]) or (hints[name],)
        if name == "hidden":
            good, kinds = isinstance(value, list) and all(type(n) is int for n in value), ("list of whole numbers",)
        else:
            good = type(value) in kinds or (type(value) is int and float in kinds)
        if not good:
            names = " or ".join(getattr(kind, "__name__", str(kind)).replace("NoneType", "null") for kind in kinds)
            raise SettingsError(f"{where}: {name} is {value!r}; it must be a {names}")
    return {name: tuple(value) if name == "hidden" else value for name, value in found.items()}


# ----- what they make


def pick_visible(x: Tensor) -> tuple[Units, str]:
    """Units that suit the data, (N, n), and why."""
    n = x.shape[1]
    low, high = _interval(x)
    if bool(((x == 0) | (x == 1)).all()):
        return Binary(n), "binary: all values are 0 or 1"
    if bool((x.abs() == 1).all()):
        return Spin(n), "spin: all values are -1 or 1"
    zeros = float((x == 0).double().mean())
    interval = f"values lie between {low:g} and {high:g}"
    if zeros > MANY_ZEROS and low <= 0 <= high:
        units: Units = TruncatedGaussBernoulli(n, low, high)
        return units, f"truncated Gauss-Bernoulli: {interval}, and {zeros:.0%} are exactly 0"
    return TruncatedGaussian(n, low, high), f"truncated Gaussian: {interval}"


def _interval(x: Tensor) -> tuple[float, float]:
    """That the values lie in: [0, 1], if they do; else from the smallest to the largest."""
    low, high = float(x.min()), float(x.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def make_visible(name: str, x: Tensor) -> tuple[Units, str]:
    """Visible units of a type for data, and a word on them."""
    n = x.shape[1]
    low, high = _interval(x)
    makers: dict[str, Callable[[], Units]] = {
        "binary": lambda: Binary(n),
        "spin": lambda: Spin(n),
        "gaussian": lambda: Gaussian(n),
        "truncated-gaussian": lambda: TruncatedGaussian(n, low, high),
        "gauss-bernoulli": lambda: TruncatedGaussBernoulli(n, min(low, 0.0), max(high, 0.0)),
        "categorical": lambda: Categorical(n, int(high) + 1),
    }
    return pick_visible(x) if name == "auto" else (makers[name](), f"{name}, as asked for")


def make_machine(settings: Settings, x: Tensor) -> tuple[BoltzmannMachine, str]:
    """A new machine for data, with small random weights, and a word on its visible units."""
    visible, why = make_visible(settings.visible, x)
    layers = [visible, *(HIDDEN[settings.hidden_units](n) for n in settings.hidden)]
    dtype = getattr(torch, settings.dtype)
    generator = torch.Generator().manual_seed(settings.seed)
    return dbm([units.to(dtype) for units in layers], generator=generator), why


def make_objective(settings: Settings) -> Objective | None:
    """The objective; None for `fit`'s own."""
    if settings.objective == "default":
        return None
    sweeps, particles = settings.sweeps, settings.particles
    if settings.objective == "tap":
        return TAPObjective(STARTS[settings.start](), particles, sweeps or 10)
    if settings.objective == "cd":
        return CD(sweeps or 1)
    return (HerdedPCD if settings.objective == "herded" else PCD)(sweeps or 10, particles)


def prepare_rows(settings: Settings, rows: np.ndarray[Any, Any]) -> Tensor:
    """Rows of a data set as a tensor, binarised if that was asked for."""
    x = torch.from_numpy(rows).to(getattr(torch, settings.dtype))
    if settings.visible == "categorical":
        if not bool(((x >= 0) & (x == x.round())).all()):
            raise SettingsError("visible is 'categorical', but not all values are whole numbers, 0 or more")
        return x.long()
    return x if settings.binarise is None else (x > settings.binarise).to(x.dtype)
