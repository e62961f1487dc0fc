"""Weights of visible states, which do not need ln Z, and a check that Z is finite."""

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import EstimateError
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

CHUNK_VALUES = 2**22  # maximum number of values per chunk, in the fields on the hidden units


@torch.no_grad()
def log_weight(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, *state_shape) -> (N,), float64
    """Log-weight ln P(x) + ln Z of visible states, summed over the hidden units.

    The exact result is Σ_i ln P_i(x_i) + Σ_j ln Z_j(Σ_i W_ij x_i, 0). The machine must have at most one hidden layer.
    """
    layers = list(machine.layers)
    if len(layers) > 2:
        raise ValueError(
            f"the weight of visible states is intractable with {len(layers) - 1} hidden layers; expected at most one"
        )
    parts = []
    for rows in x.split(max(1, CHUNK_VALUES // max(machine.sizes))):
        total = layers[0].log_prior(rows, validate=False).sum(-1, dtype=torch.float64)
        if machine.is_pairwise:
            flat = rows.flatten(1)
            total += 0.5 * ((flat @ machine.coupling(0)) * flat).sum(-1, dtype=torch.float64)
        else:
            tilt = Tilt(machine.field_on(1, [rows, None]), 0.0)
            total += layers[1].log_partition(tilt).sum(-1, dtype=torch.float64)
        parts.append(total)
    return torch.cat(parts)


def check_normalizable(machine: BoltzmannMachine) -> None:
    """Raise an EstimateError if couplings between units on the whole real line are too strong for a finite Z.

    Z is finite only if the quadratic energy of these units increases in all directions. This is the case if all
    eigenvalues of the couplings, in units of the standard deviations, are below 1. The weights of annealing chains do
    not reliably reveal an infinite Z, because chains may diverge slowly.
    """
    if machine.n_rows is not None:
        return
    layers = list(machine.layers)
    deviations = [_tail_deviations(layer, size) for layer, size in zip(layers, machine.sizes, strict=True)]
    if not any(bool(deviations[edge.below].any() and deviations[edge.above].any()) for edge in machine.edges()):
        return
    first = [sum(machine.sizes[:number]) for number in range(len(layers) + 1)]
    scaled = torch.zeros((first[-1], first[-1]), dtype=torch.float64, device=machine.device)
    for below, above, weights in machine.edges():
        block = deviations[below].unsqueeze(-1) * weights * deviations[above]
        scaled[first[below] : first[below + 1], first[above] : first[above + 1]] = block.double()
    scaled = scaled if machine.is_pairwise else scaled + scaled.T
    if bool(torch.isfinite(scaled).all()) and float(torch.linalg.eigvalsh(scaled)[-1]) >= 1:
        raise EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")


def _tail_deviations(layer: Units, size: int) -> Tensor:  # (size,)
    """Standard deviations of the tails of priors on the whole real line, with 0 for all other units."""
    lower, upper = layer.bounds()
    unbounded = (torch.isinf(lower) & torch.isinf(upper)).expand(size)
    if not bool(unbounded.any()):
        return torch.zeros(size, dtype=layer.dtype, device=layer.device)
    tails = layer.tail_precision()
    zeros = torch.zeros(layer.state_shape, dtype=layer.dtype, device=layer.device)
    variance = torch.where(torch.isinf(tails), layer.moments(Tilt(zeros, 0.0)).variance, 1 / tails)
    return torch.where(unbounded, variance.sqrt(), 0.0)
