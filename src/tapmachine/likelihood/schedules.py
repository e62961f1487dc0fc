"""Inverse temperatures between independent units, β = 0, and a machine, β = 1."""

import torch
from torch import Tensor

from tapmachine.likelihood.paths import anneal, path_to, seeded
from tapmachine.machine import BoltzmannMachine

PILOTS = 2  # runs that measure the path; the first one takes equal steps
PILOT_SHARE = 0.2  # of the temperatures, that each of them takes
LEAST_PILOT = 100
EVEN_SHARE = 0.1  # of the temperatures, spread evenly whatever was measured


def linear_schedule(n_temperatures: int) -> Tensor:  # (n_temperatures + 1,), float64
    """β in equal steps from 0 to 1.

    Example:
        >>> from tapmachine.likelihood import linear_schedule
        >>> linear_schedule(4)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if isinstance(n_temperatures, bool) or not (isinstance(n_temperatures, int) and n_temperatures >= 1):
        raise ValueError(f"n_temperatures is {n_temperatures!r}; it must be a whole number, 1 or more")
    return torch.linspace(0.0, 1.0, n_temperatures + 1, dtype=torch.float64)


def paper_schedule() -> Tensor:  # (14501,), float64
    """The paper's 14,500 temperatures [fig:tap-ais-psuedo], after Salakhutdinov and Murray (2008).

    500 steps of 10⁻³ to 0.5, 4,000 of 10⁻⁴ to 0.9 and 10,000 of 10⁻⁵ to 1.
    """
    parts = [(0, 50_000, 100), (50_000, 90_000, 10), (90_000, 100_000, 1)]
    hundred_thousandths = [value for first, last, step in parts for value in range(first, last, step)]
    return torch.tensor([*hundred_thousandths, 100_000], dtype=torch.float64) / 100_000


@torch.no_grad()
def adaptive_schedule(
    machine: BoltzmannMachine,
    n_temperatures: int = 1000,
    *,
    data: Tensor | None = None,
    n_runs: int = 100,
    seed: int = 0,
) -> Tensor:  # (n_temperatures + 1,), float64
    """β in steps that are short where the path is steep: each contributes alike to the variance of the weights.

    Two pilot runs, of a fifth of the temperatures each, measure how much a step changes the log-weights apart from each
    other. The schedule is fixed before the runs that use it, so that their estimate stays unbiased.

    Args:
        machine: any machine.
        n_temperatures: how many steps to make.
        data, n_runs, seed: as for `ais_log_partition`, for the pilot runs.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import adaptive_schedule
        >>> adaptive_schedule(rbm(Binary(6), Binary(3)), n_temperatures=50).shape
        torch.Size([51])
    """
    betas = linear_schedule(n_temperatures)  # checks the number, too
    path = path_to(machine, data, seed)
    n_pilot = max(LEAST_PILOT, int(PILOT_SHARE * n_temperatures))
    pilot = linear_schedule(n_pilot)
    for number in range(PILOTS):
        generator = seeded(machine.device, seed, "pilot", number)
        walk = anneal(path, pilot, path.draw(n_runs, generator), generator, measure=True)
        betas = _even_steps(pilot, walk.spread.cpu(), n_temperatures)
        pilot = _even_steps(pilot, walk.spread.cpu(), n_pilot)
    return betas


def _even_steps(betas: Tensor, spread: Tensor, n_temperatures: int) -> Tensor:
    """Points at equal distances along the path, whose length is the sum of the steps' spreads."""
    length = spread / spread.sum() if bool(spread.sum() > 0) else torch.full_like(spread, 1 / len(spread))
    length = (1 - EVEN_SHARE) * length + EVEN_SHARE * betas.diff()
    cumulative = torch.cat((length.new_zeros(1), length.cumsum(0)))
    cumulative = cumulative / cumulative[-1]
    wanted = linear_schedule(n_temperatures)
    step = torch.searchsorted(cumulative, wanted[1:-1], right=True).clamp(1, len(length)) - 1
    share = (wanted[1:-1] - cumulative[step]) / length[step]
    inner = betas[step] + share * betas.diff()[step]
    return torch.cat((wanted[:1], inner, wanted[-1:]))
