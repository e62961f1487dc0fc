"""Training state as tensors and JSON values, from which training resumes with bit-identical results."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import gathered
from tapmachine.machine import BoltzmannMachine

if TYPE_CHECKING:
    from tapmachine.training.monitor import Record
    from tapmachine.training.trainer import Trainer


class TrainingState(NamedTuple):
    """Complete training state, from which training can be resumed.

    Attributes:
        tensors: Parameters, momenta, chains, and states of random number generators, by name.
        values: All other values, which are JSON-serializable.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass
class EpochSoFar:
    """Results of the completed batches in an unfinished epoch.

    Attributes:
        order: State of the random number generator that determines the order of the rows.
        losses, norms: Losses and gradient norms of the completed batches.
        divergences: Number of steps that were undone.
        seconds: Elapsed time in seconds.
    """

    order: Tensor
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    divergences: int = 0
    seconds: float = 0.0

    def record(self, machine: BoltzmannMachine) -> "Record":
        """Return the averages over the completed batches and the norm of all weights."""
        loss, norm = (torch.stack(z).double() for z in (self.losses, self.norms))
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        squares = sum(float(w.detach().double().square().sum()) for w in machine.weights)
        return {
            "loss": float(loss[finite].mean()),
            "gradient_norm": float(norm[finite].mean()),
            "weight_norm": squares**0.5,
            "divergences": float(self.divergences),
        }


def state_of(trainer: "Trainer") -> TrainingState:
    """Return the state of a trainer between two epochs or batches.

    With several processes, every process must call this function.
    """
    step, tensors = trainer.step, trainer.step.tensors()
    scheduler = None if trainer.scheduler is None else trainer.scheduler.state_dict()
    values = {
        "device": trainer.machine.device.type,
        "finished": trainer.finished,
        "cuts": trainer.cuts,
        "last_learning_rate": trainer.machine.last_learning_rate,
        "best": str(trainer.watch.best),  # JSON has no infinity
        "best_machine": trainer.best.as_json() if trainer.best.epoch else None,
        "clustered": None if trainer.clustered is None else trainer.clustered.as_json(),
        "optimizer": _take_tensors(trainer.optimizer.state_dict(), "optimizer", tensors),
        "scheduler": _take_tensors(scheduler, "scheduler", tensors),
    }
    tensors |= {f"machine.{name}": value for name, value in trainer.machine.state_dict().items()}
    carry = [gathered(part) for part in step.carry] if step.objective.is_split else step.carry
    tensors |= {f"carry.{index}": value for index, value in enumerate(carry)}
    tensors |= {f"best.{name}": value for name, value in trainer.best.tensors.items()}
    if trainer.batches.gaps is not None:
        tensors["completions"] = trainer.batches.gaps.completions
    tensors |= {"generator.draws": trainer.generator.get_state(), "generator.order": trainer.batches.order.get_state()}
    if trainer.begun is not None:
        done = trainer.begun
        tensors |= {"begun.order": done.order}
        tensors |= {f"begun.{name}": torch.stack(getattr(done, name)) for name in ("losses", "norms")}
        values["begun"] = {"divergences": done.divergences, "seconds": done.seconds}
    return TrainingState({name: value.detach().clone().cpu() for name, value in tensors.items()}, values)


@torch.no_grad()
def restore(trainer: "Trainer", state: TrainingState) -> None:
    """Restore a trainer to the state of another trainer with the same arguments."""
    tensors, values = state
    device, step = trainer.machine.device, trainer.step
    if values["device"] != device.type:
        raise ValueError(
            f"the training state was saved on a {values['device']} device and cannot be restored on {device}"
        )
    trainer.machine.load_state_dict(tensors_under("machine.", tensors))
    trainer.machine.last_learning_rate = values.get("last_learning_rate")
    for name, value in step.tensors().items():
        value.copy_(tensors[name])
    for index, carried in enumerate(step.carry):
        whole = tensors[f"carry.{index}"]  # states of all processes; the number of processes may have changed
        carried.copy_(whole[step.world.part(len(whole))] if step.objective.is_split else whole)
    if values["best_machine"] is not None:
        trainer.best.restore(values["best_machine"], tensors_under("best.", tensors))
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    trainer.optimizer.load_state_dict(_put_tensors(values["optimizer"], tensors, device))
    for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):  # a captured step reads this tensor
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
    if trainer.scheduler is not None:
        trainer.scheduler.load_state_dict(_put_tensors(values["scheduler"], tensors, device))
    if trainer.batches.gaps is not None:
        trainer.batches.gaps.completions = tensors["completions"]
    trainer.generator.set_state(tensors["generator.draws"])
    trainer.batches.order.set_state(tensors["generator.order"])
    trainer.finished, trainer.cuts, trainer.begun = values["finished"], values["cuts"], None
    if "begun" in values:
        losses, norms = (list(tensors[f"begun.{name}"].to(device)) for name in ("losses", "norms"))
        trainer.begun = EpochSoFar(tensors["begun.order"], losses, norms, **values["begun"])
    if trainer.clustered is not None and values.get("clustered") is not None:
        trainer.clustered.restore(values["clustered"])
    trainer.watch.best = float(values["best"])
    trainer.captured = None


def _take_tensors(nested: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move all tensors in nested dictionaries and lists to `tensors`, and replace each tensor by its name."""
    if isinstance(nested, Tensor):
        tensors[name] = nested
        return {"tensor": name}
    if isinstance(nested, dict):
        return {str(key): _take_tensors(value, f"{name}.{key}", tensors) for key, value in nested.items()}
    if isinstance(nested, list | tuple):
        return [_take_tensors(value, f"{name}.{index}", tensors) for index, value in enumerate(nested)]
    return nested


def _put_tensors(nested: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """Invert `_take_tensors`.

    Numeric keys are converted back to integers, because JSON turns the parameter indices of optimizers into strings.
    """
    if isinstance(nested, dict):
        if nested.keys() == {"tensor"}:
            return tensors[nested["tensor"]].clone().to(device)
        items = ((int(key) if key.isdigit() else key, value) for key, value in nested.items())
        return {key: _put_tensors(value, tensors, device) for key, value in items}
    if isinstance(nested, list):
        return [_put_tensors(value, tensors, device) for value in nested]
    return nested


def tensors_under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, with the prefix removed from their names."""
    return {name.removeprefix(prefix): z for name, z in tensors.items() if name.startswith(prefix)}
