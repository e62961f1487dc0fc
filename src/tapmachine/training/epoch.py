"""An epoch in progress: the results of its batches so far, and its record."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.training.monitor import Record


@dataclass
class EpochSoFar:
    """An unfinished epoch.

    Attributes:
        order: State of the random number generator for the order of its rows.
        losses, norms: Losses and gradient norms of the batches so far.
        divergences: Number of steps that were undone.
        seconds: Time taken so far.
    """

    order: Tensor
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    divergences: int = 0
    seconds: float = 0.0

    def record(self, machine: BoltzmannMachine) -> Record:
        """Averages over its batches, and the norm of all weights."""
        loss, norm = (torch.stack(z).double() for z in (self.losses, self.norms))
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        squares = sum(float(w.detach().double().square().sum()) for w in machine.weights)
        return {
            "loss": float(loss[finite].mean()),
            "gradient_norm": float(norm[finite].mean()),
            "weight_norm": squares**0.5,
            "divergences": float(self.divergences),
        }
