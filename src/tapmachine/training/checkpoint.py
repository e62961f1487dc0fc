"""Training state as tensors and JSON values, from which training resumes with bit-identical results."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import gathered
from tapmachine.training.epoch import EpochSoFar
from tapmachine.training.state import TrainingState, put_tensors, take_tensors, tensors_under

if TYPE_CHECKING:
    from tapmachine.training.trainer import Trainer


def state_of(trainer: "Trainer") -> TrainingState:
    """Return the state of a trainer between two epochs or batches.

    With several processes, every process must call this function.
    """
    tensors: dict[str, Tensor] = {}
    scheduler = None if trainer.scheduler is None else trainer.scheduler.state_dict()
    values = {
        "device": trainer.machine.device.type,
        "finished": trainer.finished,
        "cuts": trainer.cuts,
        "last_learning_rate": trainer.machine.last_learning_rate,
        "best": str(trainer.watch.best),  # JSON has no infinity
        "best_machine": trainer.best.as_json() if trainer.best.epoch else None,
        "optimizer": take_tensors(trainer.optimizer.state_dict(), "optimizer", tensors),
        "scheduler": take_tensors(scheduler, "scheduler", tensors),
    }
    tensors |= {f"machine.{name}": value for name, value in trainer.machine.state_dict().items()}
    tensors |= {f"last_good.{index}": value for index, value in enumerate(trainer.step.last_good)}
    carry = [gathered(share) for share in trainer.step.carry] if trainer.step.objective.is_split else trainer.step.carry
    tensors |= {f"carry.{index}": value for index, value in enumerate(carry)}
    tensors |= {f"offset.{index}": value for index, value in enumerate(trainer.step.offsets)}
    tensors |= {f"unaveraged.{index}": value for index, value in enumerate(trainer.step.averages)}
    tensors |= {"n_averaged": trainer.step.n_averaged} | {f"best.{name}": z for name, z in trainer.best.tensors.items()}
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
    device = trainer.machine.device
    if values["device"] != device.type:
        raise ValueError(
            f"the training state was saved on a {values['device']} device and cannot be restored on {device}"
        )
    trainer.machine.load_state_dict(tensors_under("machine.", tensors))
    trainer.machine.last_learning_rate = values.get("last_learning_rate")
    for index, last in enumerate(trainer.step.last_good):
        last.copy_(tensors[f"last_good.{index}"])
    for index, carried in enumerate(trainer.step.carry):
        whole = tensors[f"carry.{index}"]  # states of all processes; the number of processes may have changed
        carried.copy_(whole[trainer.step.world.part(len(whole))] if trainer.step.objective.is_split else whole)
    for index, offset in enumerate(trainer.step.offsets):
        offset.copy_(tensors[f"offset.{index}"])
    for index, parameter in enumerate(trainer.step.averages):
        parameter.copy_(tensors[f"unaveraged.{index}"])
    trainer.step.n_averaged.copy_(tensors["n_averaged"])
    if values["best_machine"] is not None:
        trainer.best.restore(values["best_machine"], tensors_under("best.", tensors))
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    trainer.optimizer.load_state_dict(put_tensors(values["optimizer"], tensors, device))
    for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):  # a captured step reads this tensor
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
    if trainer.scheduler is not None:
        trainer.scheduler.load_state_dict(put_tensors(values["scheduler"], tensors, device))
    if trainer.batches.gaps is not None:
        trainer.batches.gaps.completions = tensors["completions"]
    trainer.generator.set_state(tensors["generator.draws"])
    trainer.batches.order.set_state(tensors["generator.order"])
    trainer.finished, trainer.cuts = values["finished"], values["cuts"]
    trainer.begun = None
    if "begun" in values:
        losses, norms = (list(tensors[f"begun.{name}"].to(device)) for name in ("losses", "norms"))
        trainer.begun = EpochSoFar(tensors["begun.order"], losses, norms, **values["begun"])
    trainer.watch.best = float(values["best"])
    trainer.captured = None
