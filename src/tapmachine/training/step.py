"""One step of training: gradient, update, and a guard that lets nothing through that is not finite."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.beliefs import Tilt
from tapmachine.compilation import compiled
from tapmachine.conditioning import hidden_given
from tapmachine.distributed import add_up, world
from tapmachine.likelihood.score import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.objectives import Objective
from tapmachine.training.starts import Carry, Context

SOME_ROWS = 1000  # of the data, for the first offsets
FOLLOW = 0.01  # share of a batch's means in the offsets of centred states


class StepResult(NamedTuple):
    """What a step tells, as tensors on the device, so that nobody waits for them.

    Attributes:
        loss: F of the machine clamped to the batch less F of the free one, ().
        gradient_norm: of all parameters together, ().
        good: 1 if loss, gradients and parameters were finite; if not, 0, and the parameters are the last with a finite
            loss, ().
    """

    loss: Tensor
    gradient_norm: Tensor
    good: Tensor


class Gradients(NamedTuple):
    """What the first half of a step leaves beside the gradients of the parameters: the loss, (), what the objective is
    handed next, and the means of all layers given the data, if gradients are to be centred.
    """

    loss: Tensor
    carry: Carry
    means: list[Tensor]


class Step:
    """A step on batches of one size. Each of several processes works on its share of the rows.

    Args:
        machine: that is trained, in place.
        objective: the model's side of the gradient.
        optimizer: over the machine's parameters.
        data: all rows in memory, for objectives that look at them; or some of them.
        batch_size: rows of each batch.
        generator: for draws, on the machine's device.
        l1: of the penalty l1·Σ|W|.
        centred: whether gradients are those of centred states.
        compile: whether to compile all but the optimiser's part with `torch.compile`.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        objective: Objective,
        optimizer: Optimizer,
        data: Tensor,
        batch_size: int,
        generator: torch.Generator,
        l1: float = 0.0,
        centred: bool = False,
        compile: bool = False,
    ) -> None:
        if centred and not can_be_centred(machine, optimizer):
            raise ValueError(
                "centred gradients need layers of units with fields that the optimiser trains, too; use centred=False"
            )
        self.machine, self.optimizer, self.data, self.generator = machine, optimizer, data, generator
        self.batch_size, self.l1, self.centred = batch_size, l1, centred
        self.world = world()
        if self.world.size > batch_size:
            raise ValueError(f"there are {self.world.size} processes for batches of {batch_size} rows; use fewer")
        self._loss = compiled(self._loss_on) if compile else self._loss_on
        self._before = compiled(self._before_the_update) if compile else self._before_the_update
        self._after = compiled(self._after_the_update) if compile else self._after_the_update
        for units in machine.units():
            units.is_bounded()  # remembered now: a compiled or captured step cannot look
        self.of_machine = list(machine.parameters())  # also those that the optimiser lacks, which have gradients, too
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.last_good = [p.detach().clone() for p in self.parameters]
        self.begin_with(objective)
        own_rows = self._first_rows()[self.world.share(batch_size)]
        self.hidden = hidden_given(machine, own_rows, validate=False) if len(machine.layers) > 2 else None
        # Not of the batch itself: means that go with its rows would take a share of 2/M off their correlations.
        self.offsets = self._means_of_data()

    def __call__(self, batch: Tensor, weights: Tensor | None = None) -> StepResult:
        """One step on a batch, whose rows count as much as their weights, which are 1 on average over all data."""
        found = self.gradients(batch, weights)
        self.add_up(found)
        return StepResult(*self.update(found))

    def gradients(self, batch: Tensor, weights: Tensor | None = None) -> Gradients:
        """The first half: what this process adds to the gradients."""
        for p in self.of_machine:
            p.grad = None
        loss, carry, means = self._loss(batch, weights)
        if self.l1:
            penalty = self.l1 * sum(w.abs().sum() for w in self.machine.weights) / self.world.size
            (loss + penalty).backward()
        else:
            loss.backward()
        return Gradients(loss.detach(), carry, means)

    def add_up(self, found: Gradients) -> None:
        """Between the halves: sums loss and gradients over all processes."""
        if self.world.size > 1:
            gradients = [p.grad for p in self.of_machine if p.grad is not None]
            add_up([*gradients, found.loss])

    def update(self, found: Gradients) -> Tensor:  # (3,)
        """The second half: the update, by the gradients as they are now; and what makes a `StepResult`, in one."""
        of_weights, of_fields = gradients_to_centre(self.machine) if self.centred else ([], [])
        norm = self._before(found.loss, of_weights, of_fields)
        self.optimizer.step()
        momenta = [z for name, z in optimizer_tensors(self.optimizer) if z.is_floating_point() and name != "step_size"]
        return self._after(found, norm, momenta)

    def begin_with(self, objective: Objective) -> None:
        """Takes an objective, which is handed in the next step what it is in a first one."""
        context = Context(self.machine, self._first_rows(), self.data, self.generator, None, self.world)
        self.objective, self.carry = objective, objective.prepare(context)

    def _first_rows(self) -> Tensor:
        order = torch.Generator().manual_seed(self.generator.initial_seed())
        rows = torch.randperm(len(self.data), generator=order)
        return self.data[rows[torch.arange(self.batch_size) % len(rows)].to(self.data.device)]

    def find_offsets(self) -> None:
        """Works the offsets out anew, for the machine as it is now."""
        for offset, mean in zip(self.offsets, self._means_of_data(), strict=True):
            offset.copy_(mean)

    def _means_of_data(self) -> list[Tensor]:
        return _data_means(self.machine, spaced(self.data, SOME_ROWS), None) if self.centred else []

    def _loss_on(self, batch: Tensor, weights: Tensor | None) -> tuple[Tensor, Carry, list[Tensor]]:
        """F of the machine clamped to the batch less F of the free one, or this process's share of it; what is handed
        on; and the means of all layers given the data, if gradients are to be centred.
        """
        loss, carry = self._free_energies(batch, weights)
        return loss, carry, _data_means(self.machine, batch, weights) if self.centred else []

    def _free_energies(self, batch: Tensor, weights: Tensor | None) -> tuple[Tensor, Carry]:
        context = Context(self.machine, batch, self.data, self.generator, weights, self.world, self.hidden)
        gain, on_model, carry = self.objective.free_energies(context, self.carry)
        if self.world.size == 1:
            return gain.mean() - on_model if weights is None else (weights * (gain - on_model)).mean(), carry
        on_model = on_model if self.objective.is_split else on_model / self.world.size
        if weights is None:
            return gain.sum() / len(batch) - on_model, carry
        return (weights[self.world.share(len(batch))] * gain).sum() / len(batch) - weights.mean() * on_model, carry

    @torch.no_grad()
    def _before_the_update(self, loss: Tensor, of_weights: list[Tensor], of_fields: list[Tensor]) -> Tensor:
        """Centres the gradients and remembers the parameters. Returns the norm of the gradients."""
        if self.centred:
            centre_gradients(of_weights, of_fields, self.offsets)
        flat = [p.grad.flatten() for p in self.parameters if p.grad is not None]
        norm = torch.stack([torch.dot(gradient, gradient) for gradient in flat]).sum().sqrt()
        self._remember(loss)
        return norm

    @torch.no_grad()
    def _after_the_update(self, found: Gradients, norm: Tensor, momenta: list[Tensor]) -> Tensor:
        """Takes the step back if it was not good. Returns the loss, the norm of the gradients, and 1 if it was."""
        good = self._guard(found.loss, norm, momenta)
        for old, new in zip(self.carry, found.carry, strict=True):
            old.copy_(torch.nan_to_num(new))
        for offset, mean in zip(self.offsets, found.means, strict=True):
            offset.copy_(torch.where(good & torch.isfinite(mean), offset.lerp(mean, FOLLOW), offset))
        return torch.stack((found.loss.double(), norm.double(), good.double()))

    def _remember(self, loss: Tensor) -> None:
        """Keeps the parameters at which the loss is finite: what a step leads to is only known in the next one."""
        if self._may_look():
            if math.isfinite(loss):
                torch._foreach_copy_(self.last_good, self.parameters)
            return
        good = torch.isfinite(loss)
        for p, last in zip(self.parameters, self.last_good, strict=True):
            last.copy_(torch.where(good, p, last))

    def _may_look(self) -> bool:
        """Whether a look at a value costs nothing: on a GPU it stalls, and what is compiled cannot."""
        return self.data.device.type == "cpu" and not torch.compiler.is_compiling()

    def _guard(self, loss: Tensor, norm: Tensor, momenta: list[Tensor]) -> Tensor:
        """Takes a step back that led to what is not finite; without a look at the values, which would stall a GPU."""
        # The sum is not finite, if any element is not; nor is the norm of gradients whose squares are too large.
        good = torch.isfinite(sum((p.sum() for p in self.parameters), loss + norm))
        if not (self._may_look() and bool(good)):
            for p, last in zip(self.parameters, self.last_good, strict=True):
                p.copy_(torch.where(good, p, last))
            for momentum in momenta:
                momentum.copy_(torch.where(good, momentum, 0.0))  # it led there
        return good


def can_be_centred(machine: BoltzmannMachine, optimizer: Optimizer) -> bool:
    """Whether all layers have units with a field that is trained and takes up what centring moves."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    fields = [getattr(units, "field", None) for units in machine.units()]
    return not machine.is_pairwise and all(id(own) in trained for own in (*fields, *machine.weights))


def gradients_to_centre(machine: BoltzmannMachine) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients in all weights, and in the fields of all layers."""
    fields = [getattr(units, "field") for units in machine.units()]  # noqa: B009
    return [_gradient(p) for p in machine.weights], [_gradient(p) for p in fields]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def centre_gradients(of_weights: Sequence[Tensor], of_fields: Sequence[Tensor], means: Sequence[Tensor]) -> None:
    """Turns gradients into those of centred states (Montavon and Müller 2012, Melchior and others 2016).

    With offsets μ and λ, the means of the two layers that W couples given the data, the gradient in W becomes that of
    (x − μ)W(h − λ), and those in the fields follow: ∂W − ∂U λᵀ − μ ∂U'ᵀ, ∂U − ∂W λ, ∂U' − ∂Wᵀ μ.
    """
    raw = [own.flatten().clone() for own in of_fields]
    for number, of_weight in enumerate(of_weights):
        mu, lam = means[number], means[number + 1]
        of_weight -= torch.outer(raw[number], lam) + torch.outer(mu, raw[number + 1])
        of_fields[number].sub_((of_weight @ lam).view_as(of_fields[number]))
        of_fields[number + 1].sub_((of_weight.T @ mu).view_as(of_fields[number + 1]))


@torch.no_grad()
def _data_means(machine: BoltzmannMachine, batch: Tensor, weights: Tensor | None) -> list[Tensor]:
    """The mean of every layer given the data, from below."""
    flat = batch.flatten(1)
    share = None if weights is None else weights / weights.sum().clamp(min=torch.finfo(flat.dtype).tiny)
    means = [_mean(flat, share)]
    for number, units in enumerate(machine.units()[1:]):
        field = (flat @ machine.weights[number]).unflatten(-1, units.state_shape)
        flat = units.moments(Tilt(field, 0.0)).mean.flatten(1)
        means.append(_mean(flat, share))
    return means


def _mean(rows: Tensor, share: Tensor | None) -> Tensor:
    return rows.mean(0) if share is None else share @ rows


def optimizer_tensors(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """All that an optimiser remembers, by name."""
    states = optimizer.state.values()
    return [(name, value) for state in states for name, value in state.items() if isinstance(value, Tensor)]
