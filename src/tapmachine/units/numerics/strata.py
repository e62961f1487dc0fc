"""Stratified uniform numbers, which are evenly spread over the chains for each unit."""

import torch
from torch import Tensor


def lattice(n_chains: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:  # (K, Q)
    """Compute k·a/Q modulo 1 for chains k < K and multipliers a < Q, where Q is the smallest prime number ≥ K."""
    q = max(3, n_chains)
    while any(q % divisor == 0 for divisor in range(2, int(q**0.5) + 1)):
        q += 1
    return (torch.outer(torch.arange(n_chains), torch.arange(q)) % q).double().div(q).to(device, dtype)


def strata(points: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:  # (K, Q) -> (K, n)
    """Draw uniform numbers that are independent within each chain and evenly spread over the chains.

    The number for unit i of chain k is the fractional part of k·a_i/Q + s_i, where a_i is a random multiplier and s_i a
    random shift. The numbers of one chain are uniform and independent, so each chain is an exact Gibbs chain. Over the
    chains, the numbers of one unit are 1/Q apart, and the pairs of numbers of two units form a lattice in the unit
    square. Averages over chains therefore vary less than with independent numbers. Since only two random numbers per
    unit are drawn, several processes that share the chains obtain the same numbers as a single process.

    Args:
        points: Result of `lattice`. To draw numbers for a subset of the chains, pass only the corresponding rows.
        n: Number of units.
        generator: Random number generator on the device of the points (default: torch's global generator).

    Returns:
        Uniform numbers, of shape (K, n).

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
