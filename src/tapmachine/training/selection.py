"""Early stopping, and selection of the machine with the best held-out log-likelihood."""

import math

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine

CLEARLY = 2.0  # number of standard errors above which two log-likelihoods differ significantly
PATIENCE = 3  # number of significantly worse measurements after which training stops


class BestMachine:
    """Machine with the highest held-out log-likelihood so far.

    Attributes:
        value, error: Held-out log-likelihood of the machine in nats, and the standard error of ln Z.
        epoch: Epoch after which the machine was measured; 0 before the first measurement.
        n_worse: Number of later measurements with a significantly lower log-likelihood.
        tensors: Parameters and buffers of the machine.
    """

    def __init__(self) -> None:
        self.value, self.error, self.epoch, self.n_worse = -math.inf, 0.0, 0, 0
        self.tensors: dict[str, Tensor] = {}

    @property
    def is_final(self) -> bool:
        """Whether to stop training because several later measurements were significantly worse."""
        return self.n_worse >= PATIENCE

    def is_clearly_above(self, value: float, error: float) -> bool:
        """Return whether the best log-likelihood is significantly higher than another one, given the errors of both."""
        return self.value - value > CLEARLY * math.hypot(self.error, error)

    def compare(self, machine: BoltzmannMachine, epoch: int, value: float, error: float, row_error: float) -> None:
        """Keep a copy of the machine if its log-likelihood is the highest so far.

        Before the hidden units have learned anything, log-likelihoods fluctuate slightly, even if ln Z is exact. A
        machine therefore counts as worse only if the difference is significant given `row_error`, the standard error of
        the mean over held-out rows. If `row_error` is NaN, a machine never counts as worse.
        """
        if value > self.value:
            self.value, self.error, self.epoch, self.n_worse = value, error, epoch, 0
            self.tensors = {name: z.detach().clone() for name, z in machine.state_dict().items()}
        elif self.is_clearly_above(value, math.hypot(error, row_error)):
            self.n_worse += 1

    @torch.no_grad()
    def put_into(self, machine: BoltzmannMachine) -> None:
        """Copy the best parameters into a machine."""
        machine.load_state_dict(self.tensors)

    def as_json(self) -> dict[str, float]:
        """Return all attributes except for the tensors."""
        return {"value": self.value, "error": self.error, "epoch": self.epoch, "n_worse": self.n_worse}

    def restore(self, values: dict[str, float], tensors: dict[str, Tensor]) -> None:
        """Restore all attributes from the output of `as_json` and from the tensors."""
        self.value, self.error = float(values["value"]), float(values["error"])
        self.epoch, self.n_worse = int(values["epoch"]), int(values["n_worse"])
        self.tensors = tensors
