"""Stratified uniform numbers: those of each unit cover [0, 1) evenly over many chains."""

import torch
from torch import Tensor


def lattice(n_chains: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:  # (K, Q)
    """k·a/Q modulo 1 for chains k = 0 … K − 1 and multipliers a = 0 … Q − 1, where Q is the smallest prime ≥ K."""
    q = max(3, n_chains)
    while any(q % divisor == 0 for divisor in range(2, int(q**0.5) + 1)):
        q += 1
    return (torch.outer(torch.arange(n_chains), torch.arange(q)) % q).double().div(q).to(device, dtype)


def strata(points: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:  # (K, Q) -> (K, n)
    """Uniform numbers for the units of several chains: independent within a chain, evenly spread over the chains.

    Unit i of chain k gets the fractional part of k·a_i/Q + s_i: a lattice with a random multiplier a_i and a random
    shift s_i. Each number is uniform, and those of one chain are independent, so a chain driven by them is an exact
    Gibbs chain. Over the chains, the numbers of a unit are 1/Q apart, and those of two units form a lattice in the
    square, so averages over chains vary less than with independent numbers. Only two random numbers per unit are
    needed, so several processes, each with a share of the chains, obtain the same numbers as a single process.

    Args:
        points: `lattice` of all chains, or the rows of some of them.
        n: Number of units.
        generator: Random number generator, on the device of the points.

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
