"""Early stopping: selection of the machine with the best log-likelihood of held-out rows."""

import math

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine

CLEARLY = 2.0  # standard errors for a significant difference of two log-likelihoods
PATIENCE = 3  # measurements far below the best after which training stops


class BestMachine:
    """The machine with the highest held-out log-likelihood so far.

    Attributes:
        value, error: Its held-out log-likelihood in nats, and the standard error.
        epoch: Epoch after which it was measured; 0 if there is none.
        n_worse: Number of measurements since then that were far below it.
        tensors: Its parameters and buffers.
    """

    def __init__(self) -> None:
        self.value, self.error, self.epoch, self.n_worse = -math.inf, 0.0, 0, 0
        self.tensors: dict[str, Tensor] = {}

    @property
    def is_final(self) -> bool:
        """Whether the log-likelihood has been falling for so long that training should stop."""
        return self.n_worse >= PATIENCE

    def is_clearly_above(self, value: float, error: float) -> bool:
        """Whether the best machine is better than one with another log-likelihood, beyond the errors of both."""
        return self.value - value > CLEARLY * math.hypot(self.error, error)

    def compare(self, machine: BoltzmannMachine, epoch: int, value: float, error: float, row_error: float) -> None:
        """Keep a copy of the machine if it is the best so far.

        Before the hidden units have learned anything, log-likelihoods fluctuate slightly, and ln Z may be exact. A
        machine counts as worse only if the difference is significant given `row_error`, the standard error of the mean
        over held-out rows; if the error is unknown, it never does.
        """
        if value > self.value:
            self.value, self.error, self.epoch, self.n_worse = value, error, epoch, 0
            self.tensors = {name: z.detach().clone() for name, z in machine.state_dict().items()}
        elif self.is_clearly_above(value, math.hypot(error, row_error)):
            self.n_worse += 1

    @torch.no_grad()
    def put_into(self, machine: BoltzmannMachine) -> None:
        """Copy the best parameters to a machine."""
        machine.load_state_dict(self.tensors)

    def as_json(self) -> dict[str, float]:
        """All attributes except the tensors."""
        return {"value": self.value, "error": self.error, "epoch": self.epoch, "n_worse": self.n_worse}

    def restore(self, values: dict[str, float], tensors: dict[str, Tensor]) -> None:
        """Restore the output of `as_json` and the tensors."""
        self.value, self.error = float(values["value"]), float(values["error"])
        self.epoch, self.n_worse = int(values["epoch"]), int(values["n_worse"])
        self.tensors = tensors
