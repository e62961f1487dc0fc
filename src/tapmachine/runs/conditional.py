"""Conditional samples, in which some columns have fixed values."""

import torch
from torch import Tensor

from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.training.gaps import draw_missing, take_gaps


@torch.no_grad()
def conditional_samples(
    machine: BoltzmannMachine, given: Tensor, starts: Tensor, n_sweeps: int, generator: torch.Generator
) -> Tensor:  # (n,), (N, n) -> (N, *state_shape)
    """Draw rows with some values fixed.

    Machines of tables are sampled exactly, and other machines by Gibbs chains.

    Args:
        machine: Machine to sample from.
        given: Row of fixed values, with NaN for the values to draw.
        starts: Initial rows of the chains, one per sample.
        n_sweeps: Number of Gibbs sweeps per chain.
        generator: Random number generator on the machine's device.

    Returns:
        One row per chain, shape (N, *state_shape).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Gaussian, Mixed, Categorical, rbm
        >>> from tapmachine.runs.conditional import conditional_samples
        >>> machine = rbm(Mixed([Gaussian(1), Binary(1)]), Categorical(1, 2), torch.tensor([[2.0, -2.0], [9.0, -9.0]]))
        >>> given, starts = torch.tensor([9.0, torch.nan]), torch.zeros(3, 2)
        >>> conditional_samples(machine, given, starts, 10, torch.Generator().manual_seed(0))[:, 1]
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    mixture = mixture_of(machine)
    if mixture is not None:
        return mixture.condition(given.unsqueeze(0)).draws(len(starts), generator)[:, 0]
    row, missing = take_gaps(machine, given.unsqueeze(0))
    if missing is None:
        return row.expand(len(starts), *row.shape[1:]).clone()
    states = check_rows(machine, starts)
    drawn = missing.view(*missing.shape, *[1] * (states.dim() - 2))
    states = torch.where(drawn, states, row.to(states))
    return draw_missing(machine, states, missing.expand(len(states), -1), max(1, n_sweeps), generator)
