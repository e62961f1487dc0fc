"""Centered gradients (Montavon and Müller 2012, Melchior et al. 2016)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.sampler import upward


def can_be_centered(machine: BoltzmannMachine, optimizer: Optimizer) -> bool:
    """Return whether gradients can be centered.

    Centering requires an optimizer that trains all weights and fields, because the fields compensate for the offsets.
    """
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    fields = [units.prior_field for units in machine.layers]
    return all(id(p) in trained for p in (*fields, *machine.weights))


def gradients_to_center(machine: BoltzmannMachine) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of all weights and the gradients of the fields of all layers."""
    fields = [units.prior_field for units in machine.layers]
    return [_gradient(p) for p in machine.weights], [_gradient(p) for p in fields]


def _gradient(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    assert parameter.grad is not None
    return parameter.grad


def center_gradients(
    machine: BoltzmannMachine, of_weights: Sequence[Tensor], of_fields: Sequence[Tensor], means: Sequence[Tensor]
) -> None:
    """Convert gradients to centered gradients in place.

    The offsets μ and λ are the conditional means of the two layers coupled by W. The gradient of W becomes that of (x −
    μ)W(h − λ), which is ∂W − ∂U λᵀ − μ ∂U'ᵀ. The gradients of the fields become ∂U − ∂W λ and ∂U' − ∂Wᵀ μ. In a
    pairwise machine, the gradient of W becomes that of ½(x − μ)W(x − μ).
    """
    raw = [of_field.flatten().clone() for of_field in of_fields]
    if machine.is_pairwise:
        mixed = torch.outer(raw[0], means[0])
        of_weights[0].sub_(0.5 * (mixed + mixed.T)).mul_(machine.off_diagonal)
        of_fields[0].sub_((of_weights[0] @ means[0]).view_as(of_fields[0]))
        return
    for below, of_weight in enumerate(of_weights):
        above = below + 1
        mu, lam = means[below], means[above]
        of_weight -= torch.outer(raw[below], lam) + torch.outer(mu, raw[above])
        of_fields[below].sub_((of_weight @ lam).view_as(of_fields[below]))
        of_fields[above].sub_((of_weight.T @ mu).view_as(of_fields[above]))


@torch.no_grad()
def data_means(machine: BoltzmannMachine, batch: Tensor, weights: Tensor | None) -> list[Tensor]:
    """Return the mean of each layer given the data, computed in a single upward pass."""
    layers = list(machine.layers)
    means = upward(machine, [batch], lambda index, field: layers[index].mean_in(field))
    if weights is None:
        return [mean.flatten(1).mean(0) for mean in means]
    fractions = weights / weights.sum().clamp(min=torch.finfo(batch.dtype).tiny)
    return [fractions @ mean.flatten(1) for mean in means]
