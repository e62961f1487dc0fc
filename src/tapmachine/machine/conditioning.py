"""Machines with some units clamped or tilted by evidence, sharing the parameters of the unconditioned machine."""

from collections.abc import Iterator
from contextlib import contextmanager

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
    """Clamp the units of a layer to x.

    The free energy of the result is −ln of the total weight of all states with this x, so that
    ln P(x) = F(free) − F(clamped).

    The result shares the machine's parameters: moving or converting one of them (`.to()`, `.double()`) affects the
    other.

    Args:
        machine: Any machine.
        x: The values, of shape (K, n) for one row each for K particles, or (n,) for all of them.
        layer: The layer to clamp.
        mask: Which units to clamp, of shape (n,) or (K, n); the others stay free, and x is ignored there.
        validate: Whether to check that x are states of the layer, which synchronizes with a GPU.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, clamp, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> seen = clamp(machine, torch.tensor([1.0, 0.0, 0.0]), mask=torch.tensor([True, True, False]))
        >>> solve(seen).moments[0].mean.round(decimals=2)
        tensor([[1.0000, 0.0000, 0.5000]])
    """
    units = _layer(machine, layer)
    with _naming(layer):
        return _replace(machine, layer, Clamped(units, x, mask, validate))


def condition(machine: BoltzmannMachine, evidence: Tilt, layer: int = 0) -> BoltzmannMachine:
    """Multiply a layer's priors by exp(Dx − ½Ex²), the evidence of a noisy observation.

    The free energy of the result is −ln of Z times the mean of that factor: F(conditioned) − F(free) is minus the
    log-evidence. Gaussian noise with standard deviation σ on an observation y is Tilt(y/σ², 1/σ²); a bit y ∈ {0, 1}
    flipped with probability p is Tilt(ln((1 − p)/p)(2y − 1), 0). The parameters are shared, as for `clamp`.

    Args:
        machine: Any machine.
        evidence: The field D and the precision E, of shape (K, n) for K particles, or (n,), or numbers.
        layer: The layer to condition.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Tilt, condition, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> noisy = condition(machine, Tilt(field=torch.tensor([2.0, -2.0, 0.0]), precision=0.0))
        >>> solve(noisy).moments[0].mean.round(decimals=2)
        tensor([[0.8800, 0.1200, 0.5000]])
    """
    units = _layer(machine, layer)
    with _naming(layer):
        return _replace(machine, layer, Tilted(units, evidence))


def hidden_machine(machine: BoltzmannMachine, x: Tensor, validate: bool = True) -> BoltzmannMachine:
    """Create the machine of the hidden layers given visible states: a field xW on the first of them [sec:dbm].

    It has the solutions of `clamp(machine, x)` at lower cost; its free energy is that of the clamped machine minus
    −Σ ln P(x) of the visible units. The field is computed once, and no gradient flows through it.

    Args:
        machine: A machine with two or more hidden layers.
        x: States of the visible layer, (K, n_visible).
        validate: As for `clamp`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, solve
        >>> from tapmachine.machine import hidden_machine
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
    with _naming(0):
        x = visible.check_states(x, validate)
    tilted = Tilted(first, Tilt(_field_of(machine, x), 0.0), validate=False)
    return BoltzmannMachine([tilted, *others], list(machine.weights)[1:])


@torch.no_grad()
def replace_rows(hidden: BoltzmannMachine, machine: BoltzmannMachine, x: Tensor) -> None:
    """Replace the visible states of `hidden_machine` by the same number of others, without validation."""
    tilted = hidden.layers[0]
    assert isinstance(tilted, Tilted)
    tilted.field.copy_(_field_of(machine, x))


def _field_of(machine: BoltzmannMachine, x: Tensor) -> Tensor:
    visible, first = list(machine.layers)[:2]
    flat = x.flatten(-len(visible.state_shape)) @ machine.weights[0]
    field: Tensor = flat.unflatten(-1, first.state_shape)
    return field


def is_clamped(machine: BoltzmannMachine) -> bool:
    """Whether any units of the machine are clamped."""
    return any(isinstance(part, Clamped) for layer in machine.layers for part in layer.modules())


def _layer(machine: BoltzmannMachine, layer: int) -> Units:
    return machine.layers[check_count("layer", layer, 0, len(machine.layers) - 1)]


@contextmanager
def _naming(layer: int) -> Iterator[None]:
    """Add the layer to error messages."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {layer}: {error}") from None


def _replace(machine: BoltzmannMachine, layer: int, units: Units) -> BoltzmannMachine:
    layers = list(machine.layers)
    layers[layer] = units
    conditioned = machine.with_layers(layers)
    if conditioned.n_rows == 0:  # also raises here if two layers have different numbers of rows
        raise ValueError("evidence has no rows")
    return conditioned
