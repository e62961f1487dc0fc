"""Training on rows with missing values, which are sampled from the machine given the observed values.

The gradient of the observed-data log-likelihood is the gradient for complete rows, averaged over the missing values:

    ∂ ln P(x_obs) = E[∂ ln P(x_obs, x_mis) | x_obs].

Each row with missing values has a Gibbs chain. A sweep draws the hidden units given the visible units, and then the
missing visible units given the hidden units, while the observed units stay fixed. Whenever the row is in a batch, its
chain continues from the previous state.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.conditioning import clamp
from tapmachine.machine.sampler import draw_layers, independently, sweep_chain, upward

N_SWEEPS = 3  # number of sweeps of a row's chain whenever the row is in a batch
ROUNDS = 50  # rounds of stochastic EM, for machines that are initialized by a fit to the data


def check_columns(missing: Tensor, names: Sequence[str] | None = None) -> None:
    """Raise a ValueError if a column has no observed values."""
    empty = missing.all(0)
    if bool(empty.any()):
        column = int(empty.nonzero()[0])
        name = "" if names is None else f" ({names[column]})"
        raise ValueError(f"column {column}{name} has no observed values; remove it")


def fill_from_columns(states: Tensor, missing: Tensor, weights: Tensor | None, seed: int) -> Tensor:
    """Fill in missing units with states observed in the same columns, in the observed proportions."""
    states, generator = states.clone(), torch.Generator().manual_seed(seed)
    for column in missing.any(0).nonzero().flatten().tolist():
        seen, gaps = (~missing[:, column]).nonzero().flatten(), missing[:, column].nonzero().flatten()
        of_donors = torch.ones(len(seen), device=seen.device) if weights is None else weights[seen]
        total = of_donors.double().cumsum(0)
        if not bool(total[-1] > 0):
            raise ValueError(f"column {column} has no observed values in rows with positive weight; remove it")
        quantiles = (torch.arange(len(gaps), device=total.device) + 0.5) / len(gaps) * total[-1]
        donors = seen[torch.searchsorted(total, quantiles).clamp(max=len(seen) - 1)]
        order = torch.randperm(len(gaps), generator=generator).to(donors.device)
        states[gaps, column] = states[donors[order], column]
    return states


def fill_columns(x: Tensor, seed: int = 0) -> Tensor:  # (N, n)
    """Replace each missing number by a number observed in the same column."""
    missing = x.isnan()
    check_columns(missing)
    return fill_from_columns(x, missing, None, seed)


@torch.no_grad()
def draw_missing(
    machine: BoltzmannMachine,
    x: Tensor,
    missing: Tensor,
    n_sweeps: int = N_SWEEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw missing units by Gibbs sampling with the observed units fixed, and return the complete states.

    Args:
        machine: Machine of any type.
        x: Complete states of the visible layer from which the chains start, shape (M, *state_shape).
        missing: Mask of the units to draw, shape (M, n).
        n_sweeps: Number of Gibbs sweeps (default: 3).
        generator: Random number generator (default: torch's global generator).
    """
    if machine.is_pairwise:
        conditioned, chain = clamp(machine, x, mask=~missing, validate=False), [x]
        for _ in range(n_sweeps):
            chain = sweep_chain(conditioned, chain, generator)
        return chain[0]
    drawn, draw = missing.view(*missing.shape, *[1] * (x.dim() - 2)), independently(machine, generator)
    chain = upward(machine, [x], draw)
    for sweep in range(n_sweeps):
        if sweep or len(chain) > 2:
            chain = draw_layers(machine, chain, 1, draw)
        chain = draw_layers(machine, chain, 0, draw)
        chain[0] = torch.where(drawn & torch.isfinite(chain[0]), chain[0], x)
    return chain[0]


class Gaps:
    """Missing values of rows in memory and their current completions.

    Args:
        machine: Machine being trained.
        rows: States of the visible layer with missing units filled in, shape (N, *state_shape), updated in place.
        missing: Mask of the missing units, shape (N, n).
        generator: Random number generator on the machine's device (default: torch's global generator).
    """

    def __init__(
        self, machine: BoltzmannMachine, rows: Tensor, missing: Tensor, generator: torch.Generator | None = None
    ) -> None:
        self.machine, self.rows, self.missing, self.generator = machine, rows, missing, generator

    @property
    def completions(self) -> Tensor:  # (n_gaps, *component_shape)
        """Current states of all missing units."""
        return self.rows[self.missing]

    @completions.setter
    def completions(self, states: Tensor) -> None:
        self.rows[self.missing] = states.to(self.rows)

    def improve(self, refit: Callable[[BoltzmannMachine, Tensor], None]) -> None:
        """Improve the completions by stochastic EM.

        Stochastic EM alternates between fitting a machine to the completed rows and drawing the missing values from the
        machine. The method is used for machines that are initialized by a fit to the data, because values filled in
        column by column would bias the fit.

        Args:
            refit: Function that fits the parameters of a copy of the machine to complete rows.
        """
        for _ in range(ROUNDS):
            trial = deepcopy(self.machine)
            refit(trial, self.rows)
            self.rows.copy_(draw_missing(trial, self.rows, self.missing, N_SWEEPS, self.generator))

    def take(self, selected: Tensor) -> Tensor:
        """Draw new completions of the rows with the selected indices, store them, and return the completed rows.

        On a GPU, Gibbs sweeps also include complete rows, because a captured training step cannot read tensor values.
        """
        x = self.rows.index_select(0, selected)
        missing = self.missing.index_select(0, selected)
        if x.device.type == "cpu":
            incomplete = missing.any(1).nonzero().flatten()
            if len(incomplete):
                x[incomplete] = draw_missing(self.machine, x[incomplete], missing[incomplete], N_SWEEPS, self.generator)
        else:
            x = draw_missing(self.machine, x, missing, N_SWEEPS, self.generator)
        self.rows.index_copy_(0, selected, x)
        return x
