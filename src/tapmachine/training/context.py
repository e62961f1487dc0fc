"""Inputs to the loss in a training step."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import World
from tapmachine.machine import BoltzmannMachine

Carry = tuple[Tensor, ...]  # state of the negative phase, passed from step to step: chains, particles


class Context(NamedTuple):
    """Inputs to the loss and the negative phase in a training step.

    Attributes:
        machine: Machine being trained.
        batch: States of the visible layer, shape (M, *state_shape).
        generator: Random number generator for all draws.
        weights: Weight of each row of the batch, shape (M,); None for equal weights.
        world: Processes that share rows and particles.
        hidden: Machine of the hidden layers for the rows of this process, or None if there is only one hidden layer.
        compile_sweeps: Whether to compile the sweeps toward solutions separately from the rest of the step.
    """

    machine: BoltzmannMachine
    batch: Tensor
    generator: torch.Generator
    weights: Tensor | None = None
    world: World = World()
    hidden: BoltzmannMachine | None = None
    compile_sweeps: bool = False

    @property
    def rows(self) -> Tensor:
        """Rows of the batch that belong to this process."""
        return self.batch[self.world.part(len(self.batch))]
