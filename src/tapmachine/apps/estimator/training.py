"""Training state of the estimator and conversion of its arguments."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.apps.estimator.input import checked_weights
from tapmachine.data.rows import Rows, spaced
from tapmachine.runs.settings import Settings
from tapmachine.runs.weights import repeat_rows
from tapmachine.tables.machine import NewMachine
from tapmachine.training import Trainer
from tapmachine.training.gaps import check_columns, fill_columns, has_gaps
from tapmachine.training.state import TrainingState

N_STARTS = 100  # number of stored rows, used as starting points of solutions and samples


class LastTraining(NamedTuple):
    """State of the last training run, which `partial_fit` continues."""

    settings: Settings
    new: NewMachine
    state: TrainingState


def whole_number(name: str, value: Any) -> int:
    """Convert a Python or NumPy integer to int. Raises ValueError for other types."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; expected an integer") from None


def check_observed(x: Tensor, names: Sequence[str] | None) -> None:
    """Raise a ValueError if a column has no observed values."""
    if has_gaps(x):
        check_columns(x.isnan(), names)


def weighted_rows(x: Tensor, array: Any, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
    """Apply sample weights to rows.

    Returns:
        The rows and their weights. If all weights are small integers, rows are repeated and the weights are None.
    """
    if sample_weight is None:
        return x, None
    return repeat_rows(x, torch.from_numpy(checked_weights(sample_weight, array)))


def starts_from(x: Rows) -> Tensor:
    """Copy evenly spaced rows as starting points. Missing values are replaced by values observed in the same column."""
    if not isinstance(x, Tensor) or not has_gaps(x):
        return spaced(x, N_STARTS).clone()
    return spaced(fill_columns(x), N_STARTS).clone()


def take_up(trainer: Trainer, state: TrainingState) -> None:
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
