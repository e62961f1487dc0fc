"""Settings of a training run: options of training, of the machine, and of the run itself.

The options of `tapmachine train` and the JSON files of runs are derived from these declarations. The module does not
import torch, so that `--help` is fast.
"""

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tapmachine.data.declarations import (
    FILE_OR_FRACTION,
    at_least,
    check_value,
    from_json,
    holds_floats,
    option_of,
    setting,
)
from tapmachine.data.errors import SettingsError
from tapmachine.data.files import SMALL, read_bytes
from tapmachine.runs.registry import OBJECTIVES
from tapmachine.tables.options import MachineOptions
from tapmachine.training.options import FEWEST_EPOCHS, Hyperparameters, default_batch_size, default_epochs

# Settings that may change when a run continues: the number of epochs, and how often results are recorded.
ADJUSTABLE = ("epochs", "measure_every", "save_every", "keep_every")
N_KEPT = 24  # default number of kept machines, at increasing intervals; all machines if there are fewer epochs


@dataclass(frozen=True)
class Settings(Hyperparameters, MachineOptions):
    """Settings of a training run, in addition to those of training and of the machine."""

    data: str = setting(
        MISSING,
        "Data set: digits, mnist, mnist-test, a .npy, .npz (FILE.npz:NAME), .csv, .parquet, .h5ad or idx(.gz) file, or "
        "a directory of .npy files. Not required to continue a run.",
    )
    validation: str | float | None = setting(
        None, "Held-out rows: a file, or a fraction such as 0.1.", FILE_OR_FRACTION, default_text="none"
    )
    weights: str | None = setting(
        None, "Row weights: a .npy or .csv file with one weight per row.", default_text="none"
    )
    pretrain: int | None = setting(
        None,
        "Number of pretraining epochs for machines with several hidden layers.",
        at_least(0),
        default_text="same as --epochs",
    )
    objective: str = setting(
        "default",
        "Training objective: {choices}. With default, most machines are trained by pcd.",
        choices=lambda: tuple(OBJECTIVES),
    )
    n_sweeps: int | None = setting(
        None,
        "Number of TAP or Gibbs sweeps per gradient step.",
        at_least(1),
        default_text="1 for cd, and 10 otherwise",
    )
    n_particles: int | None = setting(
        None,
        "Number of TAP solutions or Gibbs chains.",
        at_least(1),
        default_text="the batch size",
        on_shell=False,
    )
    measure_every: int | None = setting(
        None,
        "Number of epochs between measurements.",
        at_least(1),
        default_text="20 measurements at increasing intervals",
    )
    save_every: int = setting(1, "Number of epochs between checkpoints.", at_least(1))
    keep_every: int | None = setting(
        None,
        "Number of epochs between kept machines. With 0, no machines are kept.",
        at_least(0),
        default_text="about 20 machines in total",
    )

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        MachineOptions.__post_init__(self)
        for declared in fields(self):
            check_value(declared.name, getattr(self, declared.name), option_of(declared))
        if unused := self._not_for_objective():
            objectives = [word for word, entry in OBJECTIVES.items() if {*unused} <= entry.arguments.keys()]
            raise SettingsError(
                f"{' and '.join(unused)} cannot be used with objective {self.objective!r}; use one of "
                f"{', '.join(objectives)}"
            )
        if self.pretrain and len(self.hidden) == 1:
            raise SettingsError(
                f"pretrain is {self.pretrain}, which requires several hidden layers, as in --hidden 500,500"
            )

    def _not_for_objective(self) -> list[str]:
        """Return the settings that differ from their defaults although the objective does not use them."""
        names = {name for entry in OBJECTIVES.values() for name in entry.arguments}
        names -= OBJECTIVES[self.objective].arguments.keys()
        return [f.name for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]

    @property
    def all_epochs(self) -> int:
        """Total number of epochs, including pretraining."""
        return self.pretrain_epochs + (self.epochs or 0)

    @property
    def pretrain_epochs(self) -> int:
        """Number of pretraining epochs of each layer."""
        if self.pretrain is not None:
            return self.pretrain
        return (FEWEST_EPOCHS if self.epochs is None else self.epochs) if len(self.hidden) > 1 else 0

    def for_rows(self, n_rows: int) -> "Settings":
        """Return settings in which a missing number of epochs is replaced by the default for the number of rows."""
        if self.epochs is not None:
            return self
        return replace(self, epochs=default_epochs(n_rows // (self.batch_size or default_batch_size(n_rows))))

    def keeps(self, epoch: int) -> bool:
        """Return whether to keep the machine after an epoch."""
        if self.keep_every is None:
            steps = range(N_KEPT)
            return epoch in {round(self.all_epochs ** (step / (N_KEPT - 1))) for step in steps}
        return self.keep_every > 0 and epoch % self.keep_every == 0

    def with_absolute_paths(self) -> "Settings":
        """Return settings with absolute paths of data files, so that training can be resumed from any directory."""
        paths = {"data": self.data, "validation": self.validation, "weights": self.weights}
        absolute: dict[str, Any] = {name: _absolute(path) for name, path in paths.items() if isinstance(path, str)}
        return replace(self, **absolute)

    def as_json(self) -> dict[str, Any]:
        """Convert the settings to JSON values for a run directory."""
        interval = None if self.interval is None else list(self.interval)
        return asdict(self) | {"hidden": list(self.hidden), "interval": interval}

    def changes_from(self, other: "Settings") -> dict[str, str]:
        """Describe the settings that differ from other settings, by name."""
        mine, theirs = self._meaning(), other._meaning()
        return {
            name: f"{name} was {theirs[name]!r} and is {mine[name]!r}" for name in mine if mine[name] != theirs[name]
        }

    def continuing(self, earlier: "Settings") -> "Settings":
        """Return the settings for continuing a run. By default, the number of epochs does not change.

        The number of pretraining epochs never changes, even if `epochs` does.
        """
        if self.epochs is None:
            return replace(self, epochs=earlier.epochs).continuing(earlier)
        if self.pretrain is not None or self.pretrain_epochs == earlier.pretrain_epochs:
            return self
        return replace(self, pretrain=earlier.pretrain_epochs)

    def digest(self) -> str:
        """Compute a hash of the settings that affect the result, except for the paths of data files.

        Default values are omitted, so that new settings in later versions do not change the hash.
        """
        usual = type(self)(self.data)._meaning()
        chosen = {name: value for name, value in self._meaning().items() if value != usual[name]}
        if isinstance(self.validation, str):
            del chosen["validation"]
        chosen.pop("weights", None)  # data are identified by their digest
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def _meaning(self) -> dict[str, Any]:
        values, hints = {**self.as_json(), "pretrain": self.pretrain_epochs}, get_type_hints(type(self))
        return {name: _as_floats(value) if holds_floats(hints[name]) else value for name, value in values.items()}


def _absolute(source: str) -> str:
    """Make the path of a data file absolute. Names of data sets stay as they are."""
    from tapmachine.data.sources import NAMED  # imported here, because it loads NumPy

    path, mark, key = source.partition(".npz:")
    file = Path(path + ".npz" if mark else path)
    is_path = file.is_file() or (file.is_dir() and source not in NAMED)
    return f"{file.resolve()}{mark and ':' + key}" if is_path else source


def _as_floats(value: Any) -> Any:
    """Convert numbers to a canonical form, in which 0 and 0.0 are equal."""
    if isinstance(value, list):
        return [float(each) for each in value]
    return float(value) if isinstance(value, int | float) else value


def read_settings(path: Path) -> dict[str, Any]:
    """Read keyword arguments of `Settings` from a JSON file or the settings.json of a run."""
    try:
        content = json.loads(read_bytes(path, SMALL))
    except FileNotFoundError:
        raise SettingsError(f"{path}: file not found") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: invalid JSON: {error}") from None
    if isinstance(content, dict) and {"format", "settings"} <= content.keys():  # of a run directory
        content = content["settings"]
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected a JSON object of settings by name")
    return check_names(content, str(path))


def check_names(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check the names and types of settings from JSON and return keyword arguments of `Settings`."""
    hints = get_type_hints(Settings)
    for name in values:
        if name not in hints:
            raise SettingsError(f"{where}: unknown setting {name!r}; the file may be from another version")
    try:
        return {name: from_json(name, value, hints[name]) for name, value in values.items()}
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
