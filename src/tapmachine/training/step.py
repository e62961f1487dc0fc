"""Training step: the gradient of the loss, the update, and a guard that undoes non-finite updates."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.accelerator.compilation import compiled
from tapmachine.accelerator.distributed import add_up, world
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.conditioning import hidden_machine
from tapmachine.training.centering import can_be_centered, center_gradients, data_means, gradients_to_center
from tapmachine.training.context import Carry, Context
from tapmachine.training.options import TrainingOptions

SOME_ROWS = 1000  # number of rows of data for the initial offsets
FOLLOW = 0.01  # weight of a batch's means in the running means, which are the offsets of centered states
TAIL = 8.0  # parameters are averaged over about the last 1/TAIL of all steps so far


class StepResult(NamedTuple):
    """Result of a training step, as tensors on the device to avoid synchronization.

    Attributes:
        loss: F of the machine clamped to the batch minus F of the free machine, a scalar.
        gradient_norm: Norm of the gradient of all parameters, a scalar.
        good: 1 if the loss, the gradients and the parameters are finite, otherwise 0. If 0, the parameters are reset to
            their last values with a finite loss.
    """

    loss: Tensor
    gradient_norm: Tensor
    good: Tensor


class Gradients(NamedTuple):
    """Result of the first half of a training step, in addition to the gradients stored in the parameters.

    Attributes:
        context: Inputs to the loss.
        loss: Loss of the batch, a scalar.
        carry: State that the objective carries over to the next step.
    """

    context: Context
    loss: Tensor
    carry: Carry


class Step:
    """Training step on batches of a fixed size.

    With several processes, each process works on its share of the rows.

    Args:
        machine: Machine to train in place.
        data: All rows in memory, or a sample of the rows, to initialize the objective and the offsets.
        batch_size: Number of rows per batch.
        generator: Random number generator for all draws, on the machine's device.
        options: Options with an objective and an optimizer. With `compile`, the step is compiled, except for the
            optimizer, and except for the loss of objectives that draw samples, which no compiler can trace.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        data: Tensor,
        batch_size: int,
        generator: torch.Generator,
        options: TrainingOptions,
    ) -> None:
        objective, optimizer = options.objective, options.optimizer
        assert objective is not None
        assert isinstance(optimizer, Optimizer)
        if options.centered and not can_be_centered(machine, optimizer):
            raise ValueError(
                "centered gradients require layers whose weights and fields the optimizer trains; use centered=False"
            )
        self.machine, self.optimizer, self.generator = machine, optimizer, generator
        self.batch_size, self.options, compile = batch_size, options, options.compile
        self.world = world()
        if self.world.size > batch_size:
            raise ValueError(
                f"batches of {batch_size} rows cannot be divided among {self.world.size} processes; use fewer processes"
            )
        self.compile_sweeps = bool(compile) and objective.has_many_sweeps
        in_one_graph = objective.gains_by_compilation and not self.compile_sweeps
        self.loss = compiled(objective.loss) if compile and in_one_graph else objective.loss
        self._before = compiled(self._before_the_update) if compile else self._before_the_update
        self._after = compiled(self._after_the_update) if compile else self._after_the_update
        for units in machine.layers:  # cached now, because a compiled or captured step cannot read values
            units.is_bounded()
            for name in ("has_counts", "is_categorical"):
                getattr(units, name)
        self.of_machine = list(
            machine.parameters()
        )  # includes parameters outside of the optimizer, because they also get gradients
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.last_good = [p.detach().clone() for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.parameters] if options.averaged else []
        self.n_averaged = torch.zeros((), dtype=machine.dtype, device=machine.device)
        first = Context(machine, self._first_rows(data), generator, None, self.world)
        self.objective, self.carry = objective, objective.prepare(first)
        self.hidden = hidden_machine(machine, first.rows, validate=False) if len(machine.layers) > 2 else None
        # Centering by batch means instead of running means would reduce the correlations by a fraction of 2/M.
        self.offsets = data_means(machine, spaced(data, SOME_ROWS), None) if options.centered else []

    def __call__(self, batch: Tensor, weights: Tensor | None = None) -> StepResult:
        """Train on one batch.

        Rows are weighted by `weights`, whose mean over the data set is 1.
        """
        context = self.context(batch, weights)
        gradients = self.backward(context, *self.loss(context, self.carry))
        self.add_up(gradients)
        return StepResult(*self.update(gradients))

    def context(self, batch: Tensor, weights: Tensor | None) -> Context:
        """Return the inputs to the loss for a batch."""
        return Context(self.machine, batch, self.generator, weights, self.world, self.hidden, self.compile_sweeps)

    def backward(self, context: Context, loss: Tensor, carry: Carry) -> Gradients:
        """Compute the gradients of the loss, or the contribution of this process to the gradients."""
        for p in self.of_machine:
            p.grad = None
        (loss + self.options.penalty(self.machine.weights) / self.world.size).backward()
        return Gradients(context, loss.detach(), carry)

    def add_up(self, gradients: Gradients) -> None:
        """Sum the loss and the gradients over all processes."""
        if self.world.size > 1:
            add_up([*(p.grad for p in self.of_machine if p.grad is not None), gradients.loss])

    def update(self, gradients: Gradients) -> Tensor:  # (3,)
        """Update the parameters with their current gradients, and return the stacked entries of a `StepResult`."""
        of_weights, of_fields = gradients_to_center(self.machine) if self.options.centered else ([], [])
        norm, means = self._before(gradients, of_weights, of_fields)
        self.optimizer.step()
        momenta = [z for name, z in optimizer_tensors(self.optimizer) if z.is_floating_point() and name != "step_size"]
        return self._after(gradients, norm, means, momenta)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, except for the parameters, their momenta and the carried state.

        The tensors keep their memory when a state is restored, because captured steps use them.
        """
        lists = {"last_good": self.last_good, "offset": self.offsets, "unaveraged": self.averages}
        tensors = {f"{name}.{index}": z for name, parts in lists.items() for index, z in enumerate(parts)}
        return tensors | {"n_averaged": self.n_averaged}

    @contextmanager
    def without_average(self) -> Iterator[None]:
        """Context manager in which the machine has the parameters of the last step instead of their average.

        The context manager has no effect if parameters are not averaged.
        """
        self.exchange_with_average()
        try:
            yield
        finally:
            self.exchange_with_average()

    @torch.no_grad()
    def exchange_with_average(self) -> None:
        """Swap the parameters with their average.

        A second call restores the original parameters.
        """
        for average, p in zip(self.averages, self.parameters, strict=False):
            current = p.clone()
            p.copy_(average)
            average.copy_(current)

    def _first_rows(self, data: Tensor) -> Tensor:
        order = torch.Generator().manual_seed(self.generator.initial_seed())
        rows = torch.randperm(len(data), generator=order)
        return data[rows[torch.arange(self.batch_size) % len(rows)].to(data.device)]

    @torch.no_grad()
    def _before_the_update(
        self, gradients: Gradients, of_weights: list[Tensor], of_fields: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Center the gradients and store the current parameters.

        Returns the norm of the gradients and, if gradients are centered, the means of all layers given the batch.
        """
        context = gradients.context
        means = data_means(self.machine, context.batch, context.weights) if self.options.centered else []
        if self.options.centered:
            center_gradients(self.machine, of_weights, of_fields, self.offsets)
        flat = [p.grad.flatten() for p in self.parameters if p.grad is not None]
        norm = torch.stack([torch.dot(gradient, gradient) for gradient in flat]).sum().sqrt()
        self._remember(gradients.loss + norm)
        return norm, means

    @torch.no_grad()
    def _after_the_update(
        self, gradients: Gradients, norm: Tensor, means: list[Tensor], momenta: list[Tensor]
    ) -> Tensor:
        """Undo the update if it produced non-finite values, and update the chains, averages and offsets.

        Returns a tensor of the loss, the norm of the gradients, and 1 for a finite or 0 for a non-finite update.
        """
        good = self._guard(gradients.loss, norm, momenta)
        for old, new in zip(self.carry, gradients.carry, strict=True):
            # Chains that bad parameters have driven to huge counts would not recover by themselves.
            old.copy_(torch.where(good, torch.nan_to_num(new), old))
        if self.averages:
            # The weight of step t grows as t^7, so that early steps are soon forgotten.
            rate = TAIL / (self.n_averaged.add_(1.0) + TAIL)
            for average, p in zip(self.averages, self.parameters, strict=True):
                average.lerp_(p, rate)
                if not (self._may_read() and bool(good)):
                    # The previous update may have produced finite parameters without a finite loss.
                    average.copy_(torch.where(good, average, p))
        for offset, mean in zip(self.offsets, means, strict=True):
            offset.copy_(torch.where(good & torch.isfinite(mean), offset.lerp(mean, FOLLOW), offset))
        return torch.stack((gradients.loss.double(), norm.double(), good.double()))

    def _remember(self, total: Tensor) -> None:
        """Store the current parameters if their loss and gradient are finite.

        Args:
            total: Sum of the loss and the norm of the gradient.
        """
        if self._may_read():
            if math.isfinite(total):
                torch._foreach_copy_(self.last_good, self.parameters)
            return
        good = torch.isfinite(total)
        for p, last in zip(self.parameters, self.last_good, strict=True):
            last.copy_(torch.where(good, p, last))

    def _may_read(self) -> bool:
        """Return whether tensor values can be read at no cost.

        Reading a value synchronizes a GPU, and compiled code cannot read values.
        """
        return self.n_averaged.device.type == "cpu" and not torch.compiler.is_compiling()

    def _guard(self, loss: Tensor, norm: Tensor, momenta: list[Tensor]) -> Tensor:
        """Undo an update that produced non-finite values.

        On a GPU, no value is read, because reading would synchronize the device.
        """
        # The sum is non-finite if any element is non-finite. The norm is also non-finite if squares overflow.
        good = torch.isfinite(sum((p.sum() for p in self.parameters), loss + norm))
        if not (self._may_read() and bool(good)):
            for p, last in zip(self.parameters, self.last_good, strict=True):
                p.copy_(torch.where(good, p, last))
            for momentum in momenta:
                momentum.copy_(torch.where(good, momentum, 0.0))  # the momentum caused the non-finite values
        return good


def optimizer_tensors(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """Return all tensors in the state of an optimizer with their names."""
    states = optimizer.state.values()
    return [(name, value) for state in states for name, value in state.items() if isinstance(value, Tensor)]
