"""The settings of a training as a user writes them down, checked together; without torch, so that --help is quick."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

VISIBLE = ("auto", "binary", "spin", "gaussian", "truncated-gaussian", "gauss-bernoulli", "categorical")
WITH_INTERVALS = ("auto", "truncated-gaussian", "gauss-bernoulli")
HIDDEN = ("binary", "spin", "gaussian")
LAYER_DATA = ("samples", "means")
REAL_NUMBERS = ("validation", "binarise", "interval", "learning_rate", "decay", "momentum", "weight_decay", "l1")
OBJECTIVES = ("default", "tap", "herded", "cd", "pcd")
PRODUCTS = ("float32", "tf32", "bfloat16")
STARTS = ("batch", "data", "noisy", "random", "persistent", "herded")
# What a run that was begun may change: how long it is, and how much of it is recorded. None of it changes the past.
ADJUSTABLE = ("epochs", "measure_every", "save_every", "keep_every")
KEPT_MACHINES = 24  # at rising distances, from the first epoch to the last; of few epochs, each

# How settings are called in errors.
KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
LISTS = {"hidden": ((int,), "a list of whole numbers"), "interval": ((int, float), "two numbers, or null")}


class SettingsError(ValueError):
    """Settings that do not make sense, by themselves or together."""


@dataclass(frozen=True)
class Settings:
    """What a training run depends on, all of it.

    Attributes:
        data: a named data set, a file, or a folder of .npy files; see `datasets.read`.
        validation: a file or folder with rows to score beside; or the share of the rows that is held out for it, the
            last ones.
        binarise: values above this become 1, the others 0.
        visible: the visible units; `auto` looks at the data.
        interval: that real values lie in; [0, 1] if they fill it, else from the smallest to the largest, unless given.
        hidden: how many units each hidden layer has.
        hidden_units: of which type.
        pretrain: epochs for each layer of a deep machine, before all are trained together; see `pretrain`. A fifth of
            the epochs, unless given; 0 for none.
        pretrain_on: `samples` or `means` of the layer below.
        doubled: whether pretraining makes up for the layers that hear from two sides.
        epochs, seed: as for `fit`.
        batch_size: rows of each step; 1/50 of the rows, but 10 to 100, unless given.
        objective: `tap`, `herded`, `cd`, `pcd`, or `default`.
        sweeps: of the objective: TAP's, or of its chains.
        particles: solutions or chains; as many as rows in a batch, unless given.
        start: where TAP's solutions start.
        learning_rate: the first step size, for values scaled to about 1; one that suits the data, unless given.
        decay: what is left of it in the end.
        momentum, weight_decay, l1, centred: as for `paper_sgd` and `fit`.
        dtype: of the parameters.
        products: the format of matrix products on a GPU; see `products_in`.
        measure_every: epochs between measurements.
        save_every: epochs between checkpoints.
        keep_every: epochs between machines that are kept, for the landscape; 0 for none. Unless given, about 20 are
            kept, more of them from the first epochs, when most happens.
    """

    data: str
    validation: str | float | None = None
    binarise: float | None = None
    visible: str = "auto"
    interval: tuple[float, float] | None = None
    hidden: tuple[int, ...] = (100,)
    hidden_units: str = "binary"
    pretrain: int | None = None
    pretrain_on: str = "samples"
    doubled: bool = False
    epochs: int = 50
    batch_size: int | None = None
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
    products: str = "float32"
    measure_every: int = 1
    save_every: int = 1
    keep_every: int | None = None

    def __post_init__(self) -> None:
        checks = [
            ("hidden", bool(self.hidden) and all(n >= 1 for n in self.hidden), "it must be whole numbers, 1 or more"),
            ("visible", self.visible in VISIBLE, f"it must be one of {', '.join(VISIBLE)}"),
            ("hidden_units", self.hidden_units in HIDDEN, f"it must be one of {', '.join(HIDDEN)}"),
            ("objective", self.objective in OBJECTIVES, f"it must be one of {', '.join(OBJECTIVES)}"),
            ("pretrain", self.pretrain is None or self.pretrain >= 0, "it must be 0 or more"),
            ("pretrain_on", self.pretrain_on in LAYER_DATA, f"it must be one of {', '.join(LAYER_DATA)}"),
            ("start", self.start in STARTS, f"it must be one of {', '.join(STARTS)}"),
            ("dtype", self.dtype in ("float32", "float64"), "it must be float32 or float64"),
            ("products", self.products in PRODUCTS, f"it must be one of {', '.join(PRODUCTS)}"),
            ("decay", 0 < self.decay <= 1, "it must be greater than 0, and 1 at most"),
            ("momentum", 0 <= self.momentum < 1, "it must be 0 or more, and less than 1"),
            ("learning_rate", self.learning_rate is None or self.learning_rate > 0, "it must be greater than 0"),
            ("keep_every", self.keep_every is None or self.keep_every >= 0, "it must be 0 or more"),
            *((name, getattr(self, name) >= 0, "it must be 0 or more") for name in ("weight_decay", "l1", "epochs")),
            *((name, getattr(self, name) >= 1, "it must be 1 or more") for name in ("measure_every", "save_every")),
            *(
                (name, getattr(self, name) is None or getattr(self, name) >= 1, "it must be 1 or more")
                for name in ("batch_size", "sweeps", "particles")
            ),
            (
                "interval",
                self.interval is None or (len(self.interval) == 2 and self.interval[0] < self.interval[1]),
                "it must be two rising numbers, such as 0 and 1",
            ),
            *(
                (name, getattr(self, name) is None or math.isfinite(getattr(self, name)), "it must be finite")
                for name in ("binarise", "learning_rate")
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
        if self.interval is not None and (self.visible not in WITH_INTERVALS or self.binarise is not None):
            raise SettingsError(
                f"interval is for real-valued data; visible is {self.visible!r}, binarise {self.binarise}"
            )
        if self.binarise is not None and self.visible not in ("auto", "binary"):
            raise SettingsError(f"binarise makes values 0 or 1, but visible is {self.visible!r}")
        if self.products != "float32" and self.dtype != "float32":
            raise SettingsError(f"products is {self.products!r}, which is for the dtype float32, not {self.dtype}")
        if self.pretrain and len(self.hidden) < 2:
            raise SettingsError(f"pretrain is {self.pretrain}, which is for several hidden layers, as --hidden 500,500")
        if self.pretrain_epochs == 0 and (self.doubled or self.pretrain_on != "samples"):
            raise SettingsError("pretrain_on and doubled go with pretrain, the epochs for each layer")
        if self.objective == "cd" and self.particles is not None:
            raise SettingsError("particles: cd has as many chains as rows in a batch")
        if self.objective == "default" and (self.sweeps or self.particles):
            raise SettingsError("sweeps and particles go with an objective of your choice; say which")

    @property
    def all_epochs(self) -> int:
        """Those of the layers' pretraining and of the training."""
        return self.pretrain_epochs * len(self.hidden) + self.epochs

    @property
    def pretrain_epochs(self) -> int:
        """Of each layer."""
        if self.pretrain is not None:
            return self.pretrain
        return self.epochs // 5 if len(self.hidden) > 1 else 0

    def keeps(self, epoch: int) -> bool:
        """Whether the machine after an epoch is kept."""
        if self.keep_every is None:
            steps = range(KEPT_MACHINES)
            return epoch in {round(self.all_epochs ** (step / (KEPT_MACHINES - 1))) for step in steps}
        return self.keep_every > 0 and epoch % self.keep_every == 0

    def as_json(self) -> dict[str, Any]:
        """As a run folder holds them."""
        interval = None if self.interval is None else list(self.interval)
        return asdict(self) | {"hidden": list(self.hidden), "interval": interval}

    def changes_from(self, other: "Settings") -> dict[str, str]:
        """The settings that differ, by name, in words."""
        mine, theirs = self._meaning(), other._meaning()
        return {
            name: f"{name} was {theirs[name]!r} and is {mine[name]!r}" for name in mine if mine[name] != theirs[name]
        }

    def continuing(self, earlier: "Settings") -> "Settings":
        """The same for a run that was begun with earlier settings, whose pretraining stays as long as it was.

        By default the length of pretraining follows the number of epochs, which may be another one now.
        """
        if self.pretrain is not None or self.pretrain_epochs == earlier.pretrain_epochs:
            return self
        return replace(self, pretrain=earlier.pretrain_epochs)

    def digest(self) -> str:
        """The same for settings that make the same of the same data, wherever those are.

        What has its default value does not count: settings that a later version adds must not change it.
        """
        usual = Settings(self.data)._meaning()
        chosen = {name: value for name, value in self._meaning().items() if value != usual[name]}
        if isinstance(self.validation, str):
            del chosen["validation"]
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def _meaning(self) -> dict[str, Any]:
        found = {**self.as_json(), "pretrain": self.pretrain_epochs}
        return found | {name: _as_floats(found[name]) for name in REAL_NUMBERS}


def _as_floats(value: Any) -> Any:
    """A number, or some of them, so that 0 and 0.0 are written alike."""
    if isinstance(value, list):
        return [float(each) for each in value]
    return float(value) if isinstance(value, int | float) else value


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a JSON file, as keyword arguments of `Settings`."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: is not JSON: {error}") from None
    if isinstance(found, dict) and {"format", "settings"} <= found.keys():  # of a run folder
        found = of_run(found["settings"])
    if not isinstance(found, dict):
        raise SettingsError(f"{path}: holds no settings by name")
    return check_names(found, str(path))


def of_run(found: Any) -> Any:
    """Settings as a run folder holds them, with what those of the first versions left unsaid."""
    return {"pretrain": 0} | found if isinstance(found, dict) else found


def check_names(found: dict[str, Any], where: str) -> dict[str, Any]:
    """The same, if all of them are settings of the right kind."""
    hints = get_type_hints(Settings)
    for name, value in found.items():
        if name not in hints:
            raise SettingsError(f"{where}: there is no setting {name!r}; another version may have written it")
        kinds = get_args(hints[name]) or (hints[name],)
        if name in LISTS:
            kind, words = LISTS[name]
            good = isinstance(value, list) and all(type(n) in kind for n in value)
            good = good or (value is None and type(None) in kinds)
        else:
            good = type(value) in kinds or (type(value) is int and float in kinds)
            words = " or ".join(KINDS[kind] for kind in kinds)
        if not good:
            raise SettingsError(f"{where}: {name} is {value!r}; it must be {words}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
