"""Uniform numbers for many chains at once that cover [0, 1) evenly, unit by unit."""

import torch
from torch import Tensor


def lattice(n_chains: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:  # (K, Q)
    """k·a/Q modulo 1 for chains k = 0 … K − 1 and multipliers a = 0 … Q − 1, with Q the smallest prime from K on."""
    q = max(3, n_chains)
    while any(q % divisor == 0 for divisor in range(2, int(q**0.5) + 1)):
        q += 1
    return (torch.outer(torch.arange(n_chains), torch.arange(q)) % q).double().div(q).to(device, dtype)


def strata(points: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:  # (K, Q) -> (K, n)
    """Uniform numbers for the units of several chains: independent within a chain, evenly spread over the chains.

    Chain k of unit i has the fractional part of k·a_i/Q + s_i: a lattice with a random multiplier a_i and a random
    shift s_i. Each number is uniform, and those of one chain are independent, so that a chain driven by them is an
    exact Gibbs chain. Over the chains the numbers of a unit are 1/Q apart, and those of two units form a lattice in the
    square, so that averages over chains vary less than with independent numbers. Two random numbers per unit are
    needed, whatever the number of chains, so that processes with a share of the chains each have the numbers of one
    process with all of them.

    Args:
        points: `lattice` of all chains, or the rows of some of them.
        n: number of units.
        generator: random number generator, on the device of the points.

    Example:
        >>> import torch
        >>> u = strata(lattice(5, torch.float32), 2, torch.Generator().manual_seed(0))
        >>> (5 * u).floor().long().sort(0).values.T.tolist()
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    """
    multiplier = torch.randint(1, points.shape[1], (n,), generator=generator, device=points.device)
    shift = torch.rand(n, generator=generator, dtype=points.dtype, device=points.device)
    u = points.index_select(1, multiplier).add_(shift)
    return u.sub_(u.floor())
