"""ln Z of Gaussian visible and spike-and-slab hidden units: a sum over which units are active, of determinants."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Gaussian, SpikeSlab
from tapmachine.units.numerics.intervals import wide

CHUNK_VALUES = 2**21  # entries of all matrices held at a time


def can_sum_slabs(machine: BoltzmannMachine, bits: int = 12) -> bool:
    """Whether the machine has Gaussian visible and spike-and-slab hidden units, at most `bits` of them with weights."""
    layers = list(machine.layers)
    if len(layers) != 2 or type(layers[0]) is not Gaussian or type(layers[1]) is not SpikeSlab:
        return False
    return int(_coupled_units(machine).sum()) <= bits


def slabs_log_partition(machine: BoltzmannMachine) -> Tensor:  # (), float64
    """ln Z of a machine for which `can_sum_slabs` holds, exact and differentiable; inf where the couplings are too
    strong for a finite Z. Units without weights factor out.
    """
    visible, hidden = machine.layers
    assert isinstance(visible, Gaussian)
    assert isinstance(hidden, SpikeSlab)
    coupled = _coupled_units(machine)
    weights = wide(machine.weights[0])[:, coupled]
    precision, mean = wide(visible.precision), wide(visible.field) / wide(visible.precision)
    overlaps = weights.T @ (weights / precision.unsqueeze(1))
    field = wide(hidden.field)[coupled]
    log_odds, slab = wide(hidden.log_odds)[coupled], wide(hidden.precision)[coupled]
    log_partition = active_sets_log_partition(overlaps, mean @ weights + field, log_odds, slab)
    at_rest = log_odds + 0.5 * (field**2 / slab + math.log(2 * math.pi) - slab.log())
    return log_partition - softplus(at_rest).sum()


def _coupled_units(machine: BoltzmannMachine) -> Tensor:  # (n_hidden,), bool
    """Hidden units with a weight other than 0."""
    weights: Tensor = machine.weights[0].detach()
    return (weights != 0).any(0)


def active_sets_log_partition(overlaps: Tensor, field: Tensor, log_odds: Tensor, precision: Tensor) -> Tensor:  # ()
    """ln Σ_S exp(Σ_S r) ∫ exp(Uh − ½h(V − G)h) dh over the sets S of active units, differentiable; inf if Z is.

    Args:
        overlaps: G = Wᵀ D(1/V_visible) W, (n, n).
        field: U, with what the means of the visible units send, (n,).
        log_odds: r, (n,).
        precision: V, (n,).
    """
    n = len(field)
    if n == 0:
        return field.sum()
    places = torch.arange(n, device=field.device)
    identity = torch.eye(n, dtype=field.dtype, device=field.device)
    matrix = precision.diag() - overlaps
    parts = []
    for codes in torch.arange(2**n, device=field.device).split(max(1, CHUNK_VALUES // n**2)):
        active = ((codes.unsqueeze(1) >> places) & 1).to(field.dtype)  # (S, n)
        both = active.unsqueeze(2) * active.unsqueeze(1)
        lower, failed = torch.linalg.cholesky_ex(both * matrix + (1 - both) * identity)
        solved = torch.linalg.solve_triangular(lower, (active * field).unsqueeze(2), upper=False).squeeze(2)
        of_set = active @ (log_odds + 0.5 * math.log(2 * math.pi))
        of_set = of_set + 0.5 * (solved**2).sum(1) - lower.diagonal(dim1=1, dim2=2).log().sum(1)
        parts.append(torch.where(failed == 0, of_set, torch.inf))
    return torch.cat(parts).logsumexp(0)
