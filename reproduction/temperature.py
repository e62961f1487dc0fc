"""Machines at other temperatures, and the normalizers of the priors."""

from copy import deepcopy
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.units import Binary, Categorical, Gaussian, SpikeSlab, Spin, TruncatedGaussBernoulli, TruncatedGaussian
from tapmachine.units.base import Units

EXPONENTIAL = Binary, Spin, Categorical, Gaussian, TruncatedGaussian, TruncatedGaussBernoulli, SpikeSlab


@torch.no_grad()
def at_temperature(machine: BoltzmannMachine, beta: float, couplings_only: bool = False) -> BoltzmannMachine:
    """Return the machine at inverse temperature β, with the joint distribution P(x) ∝ P₁(x)^β over all layers.

    The exponents Ux − ½Vx², the log-odds of units with an atom at 0, and the couplings are multiplied by β. For β = 0,
    all states are equally likely; for large β, only the states of lowest energy are likely. At an atom of a prior, P₁
    is a probability; elsewhere it is a density. The hidden layers are tempered as well, so the distribution of the
    visible layer alone is not a power of the original distribution.

    Args:
        machine: A machine with `Binary`, `Spin`, `Categorical`, `Gaussian`, `TruncatedGaussian`,
            `TruncatedGaussBernoulli` or `SpikeSlab` units, which is not modified.
        beta: Non-negative inverse temperature; it must be positive for units with unbounded support.
        couplings_only: Whether to multiply only the couplings by β and leave the priors unchanged, as in the paper's
            expansion in β [eq:taylorexp] (default: False).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from reproduction.temperature import at_temperature
        >>> machine = rbm(Binary(2, field=1.0), Binary(1), weights=torch.ones(2, 1))
        >>> cold = at_temperature(machine, 2.0)
        >>> float(cold.layers[0].field[0].detach()), float(cold.weights[0][0, 0].detach())
        (2.0, 2.0)
    """
    if not (isfinite(beta) and beta >= 0):
        raise ValueError(f"beta is {beta!r}; expected a non-negative, finite number")
    result = deepcopy(machine)
    for weights in result.weights:
        weights.mul_(beta)
    if not couplings_only:
        for index, units in enumerate(result.layers):
            _temper(units, index, beta)
    return result


def _temper(units: Units, layer_index: int, beta: float) -> None:
    _check(units, layer_index, "at_temperature")
    if isinstance(units, TruncatedGaussBernoulli | SpikeSlab):
        (units.active_logit if isinstance(units, TruncatedGaussBernoulli) else units.log_odds).mul_(beta)
        _temper(units.slab, layer_index, beta)
        return
    field = units.prior_field
    assert field is not None
    field.mul_(beta)
    if isinstance(units, Gaussian | TruncatedGaussian):
        units.precision = beta * units.precision


@torch.no_grad()
def prior_log_normalizer(machine: BoltzmannMachine) -> float:
    """Compute the sum of ln ∫ exp(Ux − ½Vx²) dx over all units, the log-normalizer of the priors.

    In this package, F is −ln Z with normalized priors. The paper uses unnormalized weights exp(Σ Ux + Σ xWx)
    [eq:rbmPartition]; in this convention, the free energy is F − `prior_log_normalizer(machine)`. The unnormalized
    prior of `TruncatedGaussBernoulli` units is (1 − ρ)δ(x) + ρ exp(Ux − ½Vx²), and the one of `SpikeSlab` units is δ(x)
    + e^r exp(Ux − ½Vx²).

    Args:
        machine: A machine with unit types that `at_temperature` supports.

    Example:
        >>> from tapmachine import Binary, exact_log_partition, rbm
        >>> from reproduction.temperature import prior_log_normalizer
        >>> machine = rbm(Binary(2), Binary(1))
        >>> round(prior_log_normalizer(machine), 4)  # 3 ln 2
        2.0794
    """
    return sum(float(_log_normalizer(units, index).sum()) for index, units in enumerate(machine.layers))


def _log_normalizer(units: Units, layer_index: int) -> Tensor:  # (n,), float64
    _check(units, layer_index, "prior_log_normalizer")
    double = deepcopy(units).double()
    if isinstance(double, Categorical):
        return double.field.logsumexp(-1)
    state = torch.zeros(double.n, dtype=torch.float64, device=double.device)
    if isinstance(double, Spin):
        return double.field - double.log_prior(state + 1)
    if isinstance(double, TruncatedGaussian):
        return double.log_normalizer()
    at_zero = double.log_prior(state)
    return -at_zero - softplus(double.active_logit) if isinstance(double, TruncatedGaussBernoulli) else -at_zero


def _check(units: Units, layer_index: int, function: str) -> None:
    if not isinstance(units, EXPONENTIAL):
        names = ", ".join(kind.__name__ for kind in EXPONENTIAL)
        raise ValueError(f"{function}: layer {layer_index} has {type(units).__name__} units; expected one of {names}")
