"""What the estimator needs to continue a training: its last state, and arguments as scikit-learn passes them."""

import operator
from typing import Any, NamedTuple

from tapmachine.runs.new_machine import NewMachine
from tapmachine.runs.settings import Settings
from tapmachine.training import Trainer, TrainingState


class LastTraining(NamedTuple):
    """What `partial_fit` continues from."""

    settings: Settings
    new: NewMachine
    state: TrainingState


def whole_number(name: str, value: Any) -> int:
    """An integer, or one of NumPy's, as grid searches pass them."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; expected an integer") from None


def take_up(trainer: Trainer, state: TrainingState) -> None:
    """Continue with the chains and momenta; restart them if their number has changed."""
    own = trainer.state()
    kept = {
        name: z for name, z in state.tensors.items() if name not in own.tensors or z.shape == own.tensors[name].shape
    }
    device = {"device": trainer.machine.device.type, "scheduler": own.values["scheduler"]}
    if device["device"] != state.values["device"]:  # random numbers of another kind
        kept["generator.draws"] = own.tensors["generator.draws"]
    trainer.restore(TrainingState(own.tensors | kept, state.values | device))
