"""Samples of a machine in equilibrium, which do not depend on where chains start."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.data.checks import check_count
from tapmachine.data.errors import LikelihoodWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.likelihood.annealing.estimate import COLLAPSED, anneal_until
from tapmachine.likelihood.annealing.paths import Base, path_from, seeded
from tapmachine.likelihood.annealing.trials import N_RUNS, anneal_from_bases
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import fingerprint, hash_of
from tapmachine.machine.sampler import gibbs

TEMPERATURES = (100, 300, 1000)  # tried in turn
MOST_ROWS = 1000  # rows near which modes are looked for
MOST_RUNS = 1000  # more samples are resampled from the same runs, and separated by Gibbs sweeps


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Samples of a machine.

    Attributes:
        states: States of all layers, shape (count, *state_shape) each.
        effective_sample_size: Number of independent samples that would be as accurate as the annealing runs from which
            the samples are resampled.
        n_runs: Number of these runs.
        base: Mixture from which annealing started.
        shares: Share of the samples that are closest to each component of the base, shape (K,). For solutions, these
            are the shares of their basins.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import equilibrium
        >>> samples = equilibrium(rbm(Binary(4), Binary(2)), 10)
        >>> samples.states[0].shape, samples.shares.tolist()
        (torch.Size([10, 4]), [1.0])
    """

    states: tuple[Tensor, ...]
    effective_sample_size: float
    n_runs: int
    base: Base
    shares: Tensor

    def __repr__(self) -> str:
        effective = f"effective sample size {self.effective_sample_size:.0f} of {self.n_runs} runs"
        return f"Equilibrium({len(self.states[0])} samples by annealing from {self.base.name}, {effective})"


@torch.no_grad()
def equilibrium(
    machine: BoltzmannMachine, count: int, data: Tensor | None = None, n_sweeps: int = 10, seed: int = 0
) -> Equilibrium:
    """Draw samples of a machine by annealing from a mixture that knows its modes.

    Chains start from the machine's mean-field solutions, from classes of the data, or from independent units, whichever
    leads to the largest effective sample size. They are annealed to the machine, resampled in proportion to their
    weights, and followed by Gibbs sweeps. Unlike chains that start from data, they visit every mode with its weight in
    the machine.

    Args:
        machine: Machine that is not conditioned on rows.
        count: Number of samples. At most 1,000 chains are annealed; more samples are copies, separated by the sweeps.
        data: Rows near which the machine may have modes, shape (N, n_visible) (default: none).
        n_sweeps: Number of Gibbs sweeps after annealing (default: 10).
        seed: Random seed (default: 0).

    Warns:
        LikelihoodWarning: If the weights of the chains have collapsed, so that the samples are not in equilibrium.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import equilibrium
        >>> equilibrium(rbm(Binary(4), Binary(2)), 10)
        Equilibrium(10 samples by annealing from solutions, effective sample size 100 of 100 runs)
    """
    count, n_sweeps = check_count("count", count), check_count("n_sweeps", n_sweeps, 0)
    base, n_temperatures = _best_base(machine, data)
    n_runs = min(max(count, N_RUNS), MOST_RUNS)
    estimate = anneal_until(lambda _: True, machine, (n_temperatures,), n_runs, base=base, seed=seed)
    effective = float(estimate.effective_sample_size)
    if effective < COLLAPSED * estimate.n_runs:
        warn(
            f"samples are not in equilibrium: the effective sample size is {effective:.1f} of {estimate.n_runs} "
            "annealed chains",
            LikelihoodWarning,
        )
    generator = seeded(machine.device, seed, "equilibrium")
    states = gibbs(machine, estimate.weighted_samples(count, seed), n_sweeps, generator)
    shares = path_from(base, machine).shares(states)
    return Equilibrium(tuple(states), effective, estimate.n_runs, base, shares)


def _best_base(machine: BoltzmannMachine, data: Tensor | None) -> tuple[Base, int]:
    """Return the best base and the number of temperatures, which are kept with the machine until either changes."""
    data = None if data is None else spaced(data, MOST_ROWS)
    digest = fingerprint(machine) + ("" if data is None else f" {hash_of(data)}")
    known: tuple[str, tuple[Base, int]] | None = machine.__dict__.get("_base")
    if known is None or known[0] != digest:
        best, _ = anneal_from_bases(machine, data, TEMPERATURES, with_classes=True)
        known = machine.__dict__["_base"] = (digest, (best.base, len(best.estimate.betas) - 1))
    return known[1]
