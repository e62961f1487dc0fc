"""Machines with clamped units or with evidence; they share the parameters of the unconditioned machine."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.units import Units
from tapmachine.units.conditioned import Clamped, Tilted


def clamp(
    machine: BoltzmannMachine, x: Tensor, layer: int = 0, mask: Tensor | None = None, validate: bool = True
) -> BoltzmannMachine:
    """Return a machine in which units of a layer are clamped to fixed values.

    The free energy of the clamped machine is −ln Σ exp(−E), where the sum is over all states compatible with x.
    Therefore, ln P(x) = F(unclamped) − F(clamped).

    The result shares the parameters of the machine. Moving or converting either machine, for example with `.to()` or
    `.double()`, affects the other.

    Args:
        machine: Any machine.
        x: Values of the units, of shape (K, n) with one row for each of K particles, or of shape (n,) for all
            particles.
        layer: Index of the layer to clamp (default: 0, the visible layer).
        mask: Mask of the units to clamp, of shape (n,) or (K, n); x is ignored for all other units (default: clamp all
            units).
        validate: Whether to check that x contains valid states of the layer, which synchronizes with a GPU.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, clamp, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> seen = clamp(machine, torch.tensor([1.0, 0.0, 0.0]), mask=torch.tensor([True, True, False]))
        >>> solve(seen).moments[0].mean.round(decimals=2)
        tensor([[1.0000, 0.0000, 0.5000]])
    """
    return _replace(machine, layer, lambda units: Clamped(units, x, mask, validate))


def condition(machine: BoltzmannMachine, evidence: Tilt, layer: int = 0) -> BoltzmannMachine:
    """Return a machine in which the priors of a layer are multiplied by exp(Dx − ½Ex²), the evidence from observations.

    The log-evidence, which is the logarithm of the mean of this factor, is F(unconditioned) − F(conditioned). An
    observation y with Gaussian noise of standard deviation σ corresponds to Tilt(y/σ², 1/σ²). A bit y ∈ {0, 1} that is
    flipped with probability p corresponds to Tilt(ln((1 − p)/p)(2y − 1), 0). The result shares the parameters of the
    machine; see `clamp`.

    Args:
        machine: Any machine.
        evidence: Tilt with the field D and the precision E. Both are numbers or tensors of shape (n,) or, for K
            particles, (K, n).
        layer: Index of the layer to condition (default: 0, the visible layer).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Tilt, condition, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> noisy = condition(machine, Tilt(field=torch.tensor([2.0, -2.0, 0.0]), precision=0.0))
        >>> solve(noisy).moments[0].mean.round(decimals=2)
        tensor([[0.8800, 0.1200, 0.5000]])
    """
    return _replace(machine, layer, lambda units: Tilted(units, evidence))


def hidden_machine(machine: BoltzmannMachine, x: Tensor, validate: bool = True) -> BoltzmannMachine:
    """Create a machine that consists of the hidden layers, given the states of the visible layer [sec:dbm].

    The visible states enter as the field xW on the first hidden layer. The solutions are the same as for
    `clamp(machine, x)`, but are computed at lower cost. The free energy is F(clamped) + Σ ln P(x), where P(x) is the
    prior of a visible unit. Gradients do not flow through the field, which is computed once.

    Args:
        machine: A machine with two or more hidden layers.
        x: States of the visible layer, of shape (K, n_visible).
        validate: Whether to check that x contains valid states, which synchronizes with a GPU.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, solve
        >>> from tapmachine.machine.conditioning import hidden_machine
        >>> machine = dbm([Binary(6), Binary(4), Binary(3)])
        >>> [tuple(mean.shape) for mean, _ in solve(hidden_machine(machine, torch.eye(6))).moments]
        [(6, 4), (6, 3)]
    """
    if len(machine.layers) < 3:
        raise ValueError(
            f"hidden_machine: the machine has {len(machine.layers)} layers; expected 3 or more. With one hidden layer, "
            "use machine.conditional(1, [x, None])"
        )
    visible, first, *others = machine.layers
    try:
        x = visible.check_states(x, validate)
    except ValueError as error:
        raise ValueError(f"layer 0: {error}") from None
    tilted = Tilted(first, Tilt(machine.field_from_below(1, x), 0.0), validate=False)
    return BoltzmannMachine([tilted, *others], list(machine.weights)[1:])


@torch.no_grad()
def replace_rows(hidden: BoltzmannMachine, machine: BoltzmannMachine, x: Tensor) -> None:
    """Replace the visible states of a result of `hidden_machine`, without validation.

    Args:
        hidden: Machine returned by `hidden_machine`, which is modified in place.
        machine: Machine that was passed to `hidden_machine`.
        x: New states of the visible layer, with the same number of rows as before.
    """
    tilted = hidden.layers[0]
    assert isinstance(tilted, Tilted)
    tilted.field.copy_(machine.field_from_below(1, x))


def is_clamped(machine: BoltzmannMachine) -> bool:
    """Return whether any units of the machine are clamped."""
    return any(isinstance(part, Clamped) for layer in machine.layers for part in layer.modules())


def _replace(machine: BoltzmannMachine, layer: int, make: Callable[[Units], Units]) -> BoltzmannMachine:
    """Return a machine in which a layer is replaced by `make(layer)`."""
    layers = list(machine.layers)
    units = layers[check_count("layer", layer, 0, len(layers) - 1)]
    try:
        layers[layer] = make(units)
    except ValueError as error:
        raise ValueError(f"layer {layer}: {error}") from None
    conditioned = machine.with_layers(layers)
    if conditioned.n_rows == 0:  # also raises here if two layers have different numbers of rows
        raise ValueError("evidence has no rows; expected at least one")
    return conditioned
