"""The settings of a training, each declared once. Without torch, so that `--help` is quick.

`tapmachine train` and the JSON files of runs follow from these declarations; a test holds `RBM` to them.
"""

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tapmachine.accelerator.formats import MATMUL_PRECISIONS
from tapmachine.data.budget import FEWEST_EPOCHS, default_batch_size, default_epochs
from tapmachine.data.errors import SettingsError
from tapmachine.runs.declarations import (
    BELOW_ONE,
    COLUMN_KINDS,
    FILE_OR_FRACTION,
    FINITE,
    FRACTION_KEPT,
    INTERVAL,
    POSITIVE,
    SIZES,
    at_least,
    check_value,
    from_json,
    holds_floats,
    option_of,
    pairs_from_text,
    setting,
)
from tapmachine.runs.registry import OBJECTIVES, STARTS, hidden_words, visible_words
from tapmachine.units.registry import UNIT_TYPES

# What a run that was begun may change: how long it is, and how much of it is recorded. None of it changes the past.
ADJUSTABLE = ("epochs", "measure_every", "save_every", "keep_every")
LAYER_DATA, PRETRAINED = ("samples", "means"), ("first", "all")
N_KEPT = 24  # machines, at increasing distances from the first epoch to the last; of fewer epochs, each


@dataclass(frozen=True)
class Settings:
    """All that a training run depends on. Each setting is declared with its default, help text, choices and check."""

    data: str = setting(
        MISSING,
        "Data: digits, mnist, mnist-test, a .npy, .npz (FILE.npz:NAME), .csv, .parquet, .h5ad or idx(.gz) file, or a "
        "folder of .npy files. Not needed to continue a run.",
    )
    hidden: tuple[int, ...] = setting((100,), "Number of hidden units; several layers as 500,200.", SIZES)
    visible: str = setting(
        "auto", "Type of the visible units: {choices}. auto infers it from the data.", choices=visible_words
    )
    hidden_units: str = setting(
        "auto",
        "Type of the hidden units: {choices}. auto is spike-slab above one layer of gaussian units, otherwise binary.",
        choices=hidden_words,
    )
    pretrain: int | None = setting(
        None, "Pretraining epochs of machines with several hidden layers.", at_least(0), default_text="as --epochs"
    )
    pretrain_layers: str = setting(
        "first",
        "Layers to pretrain: {choices}. With first, the machine starts as an RBM with small weights above it.",
        choices=PRETRAINED,
    )
    pretrain_on: str = setting(
        "samples", "Values of the layer below to pretrain a layer on: {choices}.", choices=LAYER_DATA
    )
    double_inputs: bool = setting(
        False, "Pretrain each layer with the input it will have from both sides (Salakhutdinov and Hinton)."
    )
    columns: str | None = setting(
        None,
        "Kinds of columns of a table by name, as in year=categorical,mass=real: real, count, binary, categorical.",
        COLUMN_KINDS,
        default_text="inferred",
    )
    interval: tuple[float, float] | None = setting(
        None, "Interval of real values, such as 0,1.", INTERVAL, default_text="0,1 or the range of the data"
    )
    rescale: bool = setting(
        True,
        "Whether real values are shifted and scaled for training; the machine is in units of the data either way.",
        flags="--rescale/--no-rescale",
    )
    binarize: float | None = setting(None, "Threshold: values above it become 1, others 0.", FINITE, default_text="off")
    validation: str | float | None = setting(
        None, "Held-out rows: a file, or a fraction such as 0.1.", FILE_OR_FRACTION, default_text="none"
    )
    weights: str | None = setting(
        None, "Row weights: a .npy or .csv file of one column, one weight for each row.", default_text="none"
    )
    early_stopping: bool = setting(
        True,
        "Whether to stop when the log-likelihood of held-out rows keeps falling, and to keep the best epoch.",
        flags="--early-stopping/--no-early-stopping",
    )
    epochs: int | None = setting(
        None,
        "Passes over the data. With more than before, a run continues.",
        at_least(0),
        default_text="300, or as many as make 20,000 steps, but at least 50",
    )
    batch_size: int | None = setting(
        None,
        "Rows of each gradient step.",
        at_least(1),
        default_text="100, or a quarter of fewer than 400 rows, but at least 10",
    )
    objective: str = setting(
        "default",
        "Training objective: {choices}. default is persistent chains, pcd, with two sweeps a step.",
        choices=lambda: tuple(OBJECTIVES),
    )
    n_sweeps: int | None = setting(
        None,
        "Sweeps of the TAP solutions or chains in each step.",
        at_least(1),
        default_text="10; 1 for cd; 20 for belief-propagation and relaxed-bp; 100 for explicit TAP",
    )
    n_particles: int | None = setting(
        None, "Number of TAP solutions or chains.", at_least(1), default_text="the batch size"
    )
    start: str = setting("batch", "Starting points of the TAP solutions: {choices}.", choices=lambda: tuple(STARTS))
    learning_rate: float | None = setting(None, "Initial learning rate.", POSITIVE, default_text="chosen from the data")
    decay: float = setting(0.01, "Final learning rate as a fraction of the initial one.", FRACTION_KEPT)
    momentum: float = setting(0.5, "Momentum of the gradient steps.", BELOW_ONE)
    field_momentum: bool = setting(
        True,
        "Whether momentum applies to the parameters of the units, or to the weights only.",
        flags="--field-momentum/--no-field-momentum",
    )
    weight_decay: float = setting(0.0, "Coefficient of the L2 penalty on the weights.", at_least(0))
    l1: float = setting(0.0, "Coefficient of the L1 penalty on the weights.", at_least(0))
    centered: bool | None = setting(
        None,
        "Whether gradients are centered.",
        default_text="centered where the units allow it",
        flags="--centered/--not-centered",
    )
    averaged: bool = setting(
        True,
        "Whether the machine gets the average of its parameters over the last eighth of the steps, or their last "
        "values.",
        flags="--averaged/--not-averaged",
    )
    seed: int = setting(0, "Random seed.")
    dtype: str = setting("float32", "Type of the parameters: {choices}.", choices=("float32", "float64"))
    matmul_precision: str = setting(
        "float32", "Format of matrix products on a GPU: {choices}.", choices=MATMUL_PRECISIONS
    )
    measure_every: int | None = setting(
        None, "Epochs between measurements.", at_least(1), default_text="20 measurements, at increasing distances"
    )
    save_every: int = setting(1, "Epochs between checkpoints.", at_least(1))
    keep_every: int | None = setting(
        None, "Epochs between kept machines; 0 keeps none.", at_least(0), default_text="about 20 in all"
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            check_value(declared.name, getattr(self, declared.name), option_of(declared))
        for is_kept, message in self._rules():
            if not is_kept:
                raise SettingsError(message)

    def _rules(self) -> list[tuple[bool, str]]:
        """Rules between settings: whether each is kept, and the error if it is not."""
        has_interval = self.visible == "auto" or UNIT_TYPES[self.visible].bounds is not None
        unused = self._not_for_objective()
        objectives = [word for word, entry in OBJECTIVES.items() if {*unused} <= entry.arguments.keys()]
        return [
            (
                not unused,
                f"{' and '.join(unused)} cannot be used with objective {self.objective!r}; use one of "
                f"{', '.join(objectives)}",
            ),
            (
                self.interval is None or (has_interval and self.binarize is None),
                f"interval is for real-valued data; visible is {self.visible!r}, binarize {self.binarize}",
            ),
            (
                self.columns is None or (self.visible == "auto" and self.binarize is None and self.interval is None),
                "columns cannot be combined with visible, binarize or interval",
            ),
            (
                self.binarize is None or self.visible in ("auto", "binary"),
                f"binarize makes values 0 or 1, but visible is {self.visible!r}",
            ),
            (
                self.matmul_precision == "float32" or self.dtype == "float32",
                f"matmul_precision is {self.matmul_precision!r}, which requires dtype float32, not {self.dtype}",
            ),
            (
                not self.pretrain or len(self.hidden) > 1,
                f"pretrain is {self.pretrain}, which requires several hidden layers, as in --hidden 500,500",
            ),
            (
                self.pretrain_epochs > 0 or not (self.double_inputs or self.pretrain_on != "samples"),
                "pretrain_on and double_inputs require pretraining: several hidden layers, and pretrain above 0",
            ),
            (
                self.pretrain_layers == "all" or not (self.double_inputs or self.pretrain_on != "samples"),
                "pretrain_on and double_inputs require pretrain_layers all",
            ),
        ]

    def _not_for_objective(self) -> list[str]:
        """Settings of an objective that were changed from their defaults and are not for this one."""
        names = {name for entry in OBJECTIVES.values() for name in entry.arguments}
        names -= OBJECTIVES[self.objective].arguments.keys()
        return [f.name for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]

    @property
    def all_epochs(self) -> int:
        """Those of the layers' pretraining and of the training."""
        n_pretrained = 1 if self.pretrain_layers == "first" else len(self.hidden)
        return self.pretrain_epochs * n_pretrained + (self.epochs or 0)

    @property
    def pretrain_epochs(self) -> int:
        """Of each layer."""
        if self.pretrain is not None:
            return self.pretrain
        return (FEWEST_EPOCHS if self.epochs is None else self.epochs) if len(self.hidden) > 1 else 0

    @property
    def column_kinds(self) -> dict[str, str]:
        """Kinds of columns by name."""
        return dict(pairs_from_text(self.columns or ""))

    def for_rows(self, n_rows: int) -> "Settings":
        """The same for a number of rows, from which the number of epochs follows by default."""
        if self.epochs is not None:
            return self
        return replace(self, epochs=default_epochs(n_rows // (self.batch_size or default_batch_size(n_rows))))

    def keeps(self, epoch: int) -> bool:
        """Whether the machine after an epoch is kept."""
        if self.keep_every is None:
            steps = range(N_KEPT)
            return epoch in {round(self.all_epochs ** (step / (N_KEPT - 1))) for step in steps}
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
        """The same for a run that was begun with earlier settings: by default it keeps its number of epochs.

        Its pretraining stays as long as it was, although that follows the number of epochs, which may be another now.
        """
        if self.epochs is None:
            return replace(self, epochs=earlier.epochs).continuing(earlier)
        if self.pretrain is not None or self.pretrain_epochs == earlier.pretrain_epochs:
            return self
        return replace(self, pretrain=earlier.pretrain_epochs)

    def digest(self) -> str:
        """Hash of the settings that affect the result, without the paths of data.

        Default values are left out, so that settings that a later version adds do not change it.
        """
        usual = type(self)(self.data)._meaning()
        chosen = {name: value for name, value in self._meaning().items() if value != usual[name]}
        if isinstance(self.validation, str):
            del chosen["validation"]
        chosen.pop("weights", None)  # the digest of the data tells them apart
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def _meaning(self) -> dict[str, Any]:
        values, hints = {**self.as_json(), "pretrain": self.pretrain_epochs}, get_type_hints(type(self))
        if self.hidden_units == "binary":  # the default of earlier versions
            values["hidden_units"] = "auto"
        return {name: _as_floats(value) if holds_floats(hints[name]) else value for name, value in values.items()}


def _as_floats(value: Any) -> Any:
    """A number, or some of them, so that 0 and 0.0 are written alike."""
    if isinstance(value, list):
        return [float(each) for each in value]
    return float(value) if isinstance(value, int | float) else value


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a JSON file, or from the settings.json of a run, as keyword arguments of `Settings`."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: is not JSON: {error}") from None
    if isinstance(content, dict) and {"format", "settings"} <= content.keys():  # of a run folder
        content = content["settings"]
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected a JSON object of settings by name")
    return check_names(content, str(path))


def check_names(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Keyword arguments of `Settings` from JSON, if all of them are settings, and of the right type."""
    hints = get_type_hints(Settings)
    for name in values:
        if name not in hints:
            raise SettingsError(f"{where}: unknown setting {name!r}; another version may have written it")
    try:
        return {name: from_json(name, value, hints[name]) for name, value in values.items()}
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
