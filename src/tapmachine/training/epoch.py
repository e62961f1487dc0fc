"""Results of an epoch in progress."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.training.monitor import Record


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

    def record(self, machine: BoltzmannMachine) -> Record:
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
