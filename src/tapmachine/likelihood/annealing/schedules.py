"""Schedules of inverse temperatures between independent units, β = 0, and a machine, β = 1."""

import torch
from torch import Tensor

from tapmachine.data.checks import check_count
from tapmachine.likelihood.annealing.paths import path_to, seeded
from tapmachine.likelihood.annealing.runs import STRIDE, anneal
from tapmachine.likelihood.weight import check_normalizable
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine

PILOTS = 2  # number of pilot runs that measure the path; the first takes equal steps
PILOT_STRIDES = 25  # number of segments measured by each pilot run
EVEN_SHARE = 0.1  # share of the temperatures that is evenly spaced regardless of the measurement


def linear_schedule(n_temperatures: int) -> Tensor:  # (n_temperatures + 1,), float64
    """Return inverse temperatures β in equal steps from 0 to 1.

    Example:
        >>> from tapmachine.likelihood import linear_schedule
        >>> linear_schedule(4)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    n_temperatures = check_count("n_temperatures", n_temperatures)
    return torch.linspace(0.0, 1.0, n_temperatures + 1, dtype=torch.float64)


@torch.no_grad()
def adaptive_schedule(
    machine: BoltzmannMachine,
    n_temperatures: int = 1000,
    *,
    data: Tensor | None = None,
    n_runs: int = 100,
    seed: int = 0,
) -> Tensor:  # (n_temperatures + 1,), float64
    """Return inverse temperatures spaced to reduce the variance of the weights.

    Steps are short where the path is steep or the chains are slow. Two pilot runs of 500 temperatures measure how much
    the variance of the log-weights increases over each segment of 20 temperatures. This increase grows with the
    variance of the energy and with the autocorrelation time of the chains (Sivak and Crooks 2012). Because the schedule
    is fixed in advance, the estimate from the subsequent runs remains unbiased.

    Args:
        machine: Machine of any type.
        n_temperatures: Number of steps (default: 1000).
        data, n_runs, seed: See `ais_log_partition`. The arguments apply to the pilot runs.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import adaptive_schedule
        >>> adaptive_schedule(rbm(Binary(6), Binary(3)), n_temperatures=50).shape
        torch.Size([51])
    """
    check_machine(machine)
    check_normalizable(machine)
    n_runs = check_count("n_runs", n_runs, 2)
    n_temperatures = check_count("n_temperatures", n_temperatures)
    path = path_to(machine, data, seed)
    pilot = linear_schedule(PILOT_STRIDES * STRIDE)
    for pilot_index in range(PILOTS):
        generator = seeded(machine.device, seed, "pilot", pilot_index)
        seen: list[Tensor] = []
        anneal(
            path,
            pilot,
            path.draw(n_runs, generator),
            generator,
            callback=lambda _, walk, seen=seen: seen.append(walk.log_weights.clone()),  # type: ignore[misc]
        )
        spread = (
            torch.stack([torch.zeros_like(seen[0]), *seen]).diff(dim=0).std(1).view(PILOT_STRIDES, -1).mean(-1).cpu()
        )
        knots = pilot[::STRIDE]
        pilot = _even_steps(knots, spread, PILOT_STRIDES * STRIDE)
    return _even_steps(knots, spread, n_temperatures)


def _even_steps(betas: Tensor, spread: Tensor, n_temperatures: int) -> Tensor:
    """Return temperatures at equal increments of the measured spread, mixed with equal steps of β."""
    length = spread / spread.sum() if bool(spread.sum() > 0) else betas.diff()
    length = (1 - EVEN_SHARE) * length + EVEN_SHARE * betas.diff()
    cumulative = torch.cat((length.new_zeros(1), length.cumsum(0)))
    cumulative = cumulative / cumulative[-1]
    wanted = linear_schedule(n_temperatures)
    step = torch.searchsorted(cumulative, wanted[1:-1], right=True).clamp(1, len(length)) - 1
    share = (wanted[1:-1] - cumulative[step]) / length[step]
    inner = betas[step] + share * betas.diff()[step]
    return torch.cat((wanted[:1], inner, wanted[-1:]))
