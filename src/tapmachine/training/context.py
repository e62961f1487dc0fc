"""Inputs of the loss of one step."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import World
from tapmachine.machine import BoltzmannMachine

Carry = tuple[Tensor, ...]  # state of the negative phase, passed from step to step: chains, particles


class Context(NamedTuple):
    """A batch, and everything else that the loss and the negative phase may use.

    Attributes:
        machine: The machine being trained.
        batch: States of the visible layer, (M, *state_shape).
        data: All rows in memory, or a sample of them.
        generator: Random number generator for all draws.
        weights: Weight of each row of the batch, (M,); None for equal weights.
        world: The processes that share rows and particles.
        hidden: For machines with several hidden layers, `hidden_machine` of this process's number of rows.
        compile_sweeps: Whether to compile the sweeps toward solutions separately from the rest of the step.
    """

    machine: BoltzmannMachine
    batch: Tensor
    data: Tensor
    generator: torch.Generator
    weights: Tensor | None = None
    world: World = World()
    hidden: BoltzmannMachine | None = None
    compile_sweeps: bool = False

    @property
    def rows(self) -> Tensor:
        """This process's rows of the batch."""
        return self.batch[self.world.share(len(self.batch))]

    def share(self, carry: Carry, count: int) -> Carry:
        """This process's share of the state for `count` particles."""
        if self.world.size == 1:
            return carry
        return tuple(z[self.world.share(count)].clone() for z in carry)
