"""Random small machines of every kind, and their exact counterparts with continuous units replaced by quadrature."""

import itertools

import numpy as np
import torch

from tapmachine import Binary, Categorical, Custom, Gaussian, Spin, TruncatedGaussBernoulli, TruncatedGaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

NODES = 12  # of the quadrature: exact to rounding for the smooth priors and weak couplings of these tests


def all_states(units: Units) -> torch.Tensor:
    """Every state of a layer with finitely many, as rows."""
    digits = torch.tensor(list(itertools.product(*(range(count) for count in units.n_states() or []))))
    return units.decode(digits)


class Tensors:
    """Random float64 tensors from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.normal(size=shape))

    def uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.uniform(low, high, size=shape))


def rounding(size: torch.Tensor | float, n_terms: int, dtype: torch.dtype = torch.float64) -> torch.Tensor | float:
    """How far two ways to sum `n_terms` may differ, where the sizes of the terms sum to `size`.

    n ε Σ|terms| bounds the rounding of one of them, in any order, with any width of vectors, with or without fused
    multiplication. What is seen grows as √n ε, so that the bound has a margin of ten from a hundred terms on.
    """
    return 2 * max(n_terms, 100) * torch.finfo(dtype).eps * size


def quartic(x: torch.Tensor) -> torch.Tensor:
    return x - x**4


UNITS = {
    "Binary": lambda r, n: Binary(n, field=r.normal(n)),
    "Spin": lambda r, n: Spin(n, field=0.5 * r.normal(n)),
    "TruncatedGaussian": lambda r, n: TruncatedGaussian(n, field=r.normal(n), precision=2 * r.normal(n)),
    "GaussBernoulli": lambda r, n: TruncatedGaussBernoulli(
        n, field=r.normal(n), precision=2 * r.normal(n), active_probability=r.uniform(0.2, 0.8, n)
    ),
    "Gaussian": lambda r, n: Gaussian(n, field=0.3 * r.normal(n), precision=r.uniform(2.0, 3.0, n)),
    "Categorical": lambda r, n: Categorical(n, 3, field=r.normal(n, 3)),
    "Custom": lambda r, n: Custom(n, quartic, values=torch.tensor([-1.0, 0.0, 1.5], dtype=torch.float64)),
}


def machine_of(kinds: list[str], sizes: list[int], seed: int, scale: float = 1.0) -> BoltzmannMachine:
    """A machine with random parameters; its couplings are normal with standard deviation `scale`."""
    random = Tensors(seed)
    layers = [UNITS[kind](random, n) for kind, n in zip(kinds, sizes, strict=True)]
    machine = BoltzmannMachine(layers)
    rescale(machine, draw_weights(machine, random), scale)
    return machine


def draw_weights(machine: BoltzmannMachine, random: Tensors) -> list[torch.Tensor]:
    drawn = [random.normal(*w.shape) for w in machine.weights]
    return [(w + w.T) / 2**0.5 for w in drawn] if machine.is_pairwise else drawn


def rescale(machine: BoltzmannMachine, weights: list[torch.Tensor], scale: float) -> None:
    with torch.no_grad():
        for target, source in zip(machine.weights, weights, strict=True):
            target.copy_(scale * source)
        if machine.is_pairwise:
            machine.weights[0].copy_(machine.coupling(0))


def by_quadrature(units: Units) -> Units:
    """Units with finitely many values that stand for continuous ones, exactly enough to be their oracle."""
    if isinstance(units, TruncatedGaussBernoulli):
        slab, log_odds = units.slab, units.active_logit.detach()
    elif isinstance(units, TruncatedGaussian):
        slab, log_odds = units, None
    else:
        return units
    t, w = np.polynomial.legendre.leggauss(NODES)
    lower, upper = float(slab.lower), float(slab.upper)
    nodes = torch.from_numpy(lower + (upper - lower) * (t + 1) / 2)
    log_weights = torch.from_numpy(np.log(w * (upper - lower) / 2))
    field, precision = slab.field.detach(), slab.precision.detach()

    def log_prior(x: torch.Tensor) -> torch.Tensor:
        nearest = (x.unsqueeze(-1) - nodes).abs().argmin(-1)
        density = log_weights[nearest] + x * (field - 0.5 * precision * x)
        return density if log_odds is None else torch.where(x == 0, 0.0, log_odds + density)

    values = nodes if log_odds is None else torch.cat((nodes.new_zeros(1), nodes))
    return Custom(units.n, log_prior, values=values)


def exact_version(machine: BoltzmannMachine) -> BoltzmannMachine:
    """The machine with its continuous units replaced, sharing the weights."""
    return machine.with_layers([by_quadrature(layer) for layer in machine.layers])
