"""Rows of machines that are not mixtures, given their observed cells, by Gibbs chains with these cells fixed."""

import math

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double, take_gaps
from tapmachine.posterior import conditional_surprise, denoise
from tapmachine.posterior.channels import Missing
from tapmachine.training.gaps import draw_missing

N_CHAINS, BURN_IN, STRIDE = 20, 50, 5  # independent chains per row, sweeps of each, and sweeps between further draws
N_DRAWS = 200  # number of draws for intervals
CHAIN_VALUES = 2**25  # maximum number of values in the states of all chains


class Chained:
    """Distribution of the missing cells of rows, given the observed cells.

    The class has the methods of `exact.Conditioned` that functions of cells call: moments, draws, intervals and the
    surprise of cells. Moments are approximate but free of noise, so that a mean may lie outside of its interval.

    Args:
        machine: Machine of any type.
        x: Rows, with NaN for missing cells.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.tables.chains import Chained
        >>> machine = rbm(Binary(2, field=4.0), Binary(2), weights=torch.zeros(2, 2))
        >>> given = Chained(machine, torch.tensor([[0.0, torch.nan]]))
        >>> given.draws(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 2])
        >>> given.cell_surprise()
        tensor([[4.0181,    nan]], dtype=torch.float64)
    """

    def __init__(self, machine: BoltzmannMachine, x: Tensor) -> None:
        self.machine, self.x = in_double(machine), x.to(machine.device)

    @property
    def moments(self) -> Moments:  # (N, *state_shape) each
        """Means and variances of all cells, by TAP."""
        posterior = denoise(self.machine, self.x, Missing())
        return Moments(posterior.mean, posterior.variance)

    @torch.no_grad()
    def draws(self, n: int, generator: torch.Generator | None = None) -> Tensor:  # (n, N, n_cells)
        """Draw complete rows. Up to 20 draws of a row are independent; further draws continue their chains.

        Args:
            n: Number of draws per row.
            generator: Random number generator (default: torch's global generator).
        """
        units, (states, missing) = self.machine.layers[0], take_gaps(self.machine, self.x)
        result = units.to_data(states).expand(n, len(states), -1).clone()
        if missing is None:
            return result
        n_chains = min(n, N_CHAINS)
        size = max(1, CHAIN_VALUES // (n_chains * sum(self.machine.sizes)))
        for rows in missing.any(1).nonzero().flatten().split(size):
            gaps = missing[rows].repeat(n_chains, 1)
            chain = states[rows].repeat(n_chains, *[1] * (states.dim() - 1))
            start = units.sample(Tilt(torch.zeros_like(chain), 0.0), generator)
            chain = torch.where(gaps.view(*gaps.shape, *[1] * (chain.dim() - 2)), start, chain)
            for first in range(0, n, n_chains):
                chain = draw_missing(self.machine, chain, gaps, STRIDE if first else BURN_IN, generator)
                drawn = units.to_data(chain).unflatten(0, (n_chains, len(rows)))
                result[first : first + n_chains, rows] = drawn[: n - first].to(result)
        return result

    def intervals(self, level: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:  # (N, n) each
        """Compute central credible intervals for missing values, as quantiles of 200 draws.

        Args:
            level: Probability that an interval contains the missing value (default: 0.9).
            seed: Random seed for the draws (default: 0).
        """
        drawn = self.draws(N_DRAWS, torch.Generator(self.x.device).manual_seed(seed)).double()
        low, high = (drawn.quantile(share, 0, interpolation="nearest") for share in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def cell_surprise(self, seed: int = 0) -> Tensor:  # (N, n)
        """Compute the surprise −ln P(x_ij | other observed cells of the row) in nats; NaN for missing cells.

        The surprise is exact in complete rows of machines with one hidden layer. In other rows, it is an average over
        20 draws of the missing cells: 1/P(x_ij | others) is the mean of 1/P(x_ij | others, drawn cells).
        """
        gappy = self.x.isnan().any(1)
        result = torch.full(self.x.shape, torch.nan, dtype=torch.float64, device=self.x.device)
        if not bool(gappy.all()):
            result[~gappy] = conditional_surprise(self.machine, self.x[~gappy])
        if bool(gappy.any()):
            generator = torch.Generator(self.x.device).manual_seed(seed)
            drawn = Chained(self.machine, self.x[gappy]).draws(N_CHAINS, generator)
            surprise = conditional_surprise(self.machine, drawn.flatten(0, 1)).unflatten(0, drawn.shape[:2])
            result[gappy] = surprise.logsumexp(0) - math.log(N_CHAINS)
        return result.masked_fill(self.x.isnan(), torch.nan)
