"""Helmholtz, Gibbs and TAP free energies of a machine that is small enough for all of them [fig:freeEnergies].

The paper draws a cartoon. Here they are computed, of spins that are all coupled alike, over their
common magnetization m.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import Model
from tapmachine.beliefs import Moments, Tilt
from tapmachine.likelihood.exact import ExactMoments, exact_log_partition, exact_moments
from tapmachine.machine import BoltzmannMachine, pairwise
from tapmachine.machine.conditioning import condition
from tapmachine.solver import TAP, random_start
from tapmachine.units import Spin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Helmholtz, Gibbs and TAP free energies of a small machine"
N_SPINS = 12
COUPLING = 1.5  # of all pairs together, where TAP has two minima from about 1.1 on
FIELD = 0.04  # that makes one of them deeper
LARGEST_FIELD = 1.6
LARGEST_MEAN = 0.99
N_POINTS = 81


def needed(lab: Lab) -> list[Model]:
    """None: its machine is made here."""
    return []


def magnet() -> BoltzmannMachine:
    """Spins that are all coupled alike."""
    weights = torch.full((N_SPINS, N_SPINS), COUPLING / N_SPINS, dtype=torch.float64).fill_diagonal_(0)
    return pairwise(Spin(N_SPINS, field=FIELD).double(), weights)


def _magnetized(machine: BoltzmannMachine, field: float) -> ExactMoments:
    return exact_moments(condition(machine, Tilt(torch.full((N_SPINS,), field, dtype=torch.float64), 0.0)))


def _fields(machine: BoltzmannMachine) -> list[float]:
    """Fields at which the magnetizations are evenly spaced: m jumps from one side to the other near 0."""
    tried = LARGEST_FIELD * torch.linspace(-1, 1, 201, dtype=torch.float64) ** 5
    means = [float(_magnetized(machine, field).moments[0].mean.mean()) for field in tried.tolist()]
    wanted = np.linspace(-LARGEST_MEAN, LARGEST_MEAN, N_POINTS)
    return [float(field) for field in np.interp(wanted, means, tried.numpy())]


@torch.no_grad()
def table(lab: Lab) -> list[Row]:
    """Over m: the Gibbs free energy max_h [hNm − ln Z(h)], TAP's, and what does not depend on m."""

    def make() -> Iterable[Row]:
        machine = magnet()
        tap = find_solutions(machine, random_start(machine, 100)).free_energy
        exact = -float(exact_log_partition(machine))
        for field in _fields(machine):
            tilted = _magnetized(machine, field)
            m = tilted.moments[0].mean.mean()
            mean = m.expand(1, N_SPINS)
            units = machine.layers[0]
            own = Tilt(units.field_with_mean(mean), 0.0)
            yield {
                "m": float(m),
                "gibbs": float(field * N_SPINS * m - tilted.log_partition),
                "tap": float(TAP().free_energy(machine, [Moments(mean, 1 - mean**2)], [own])),
                "helmholtz": exact,
                "tap_lowest": float(tap.min()),
                "tap_highest": float(tap.max()),
                "tap_mean": float(tap.mean()),
            }

    return lab.table("freeEnergies", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    figure = new_figure(5.5, 4)
    ax = figure.subplots()
    m = [float(row["m"]) for row in rows]
    ax.plot(m, [float(row["gibbs"]) for row in rows], "--", color="tab:blue", label="Gibbs, exact")
    ax.plot(m, [float(row["tap"]) for row in rows], color="tab:red", label="TAP")
    first = {name: float(value) for name, value in rows[0].items()}
    ax.axhline(first["helmholtz"], ls=":", color="black", label="Helmholtz, −ln Z")
    ax.axhline(first["tap_mean"], ls="-.", color="tab:red", label="mean of TAP's minima")
    ax.axhspan(first["tap_lowest"], first["tap_highest"], color="0.85", label="range of TAP's minima")
    low = min(first["tap_lowest"], first["helmholtz"])
    ax.set_ylim(low - 0.2, low + 2.4)
    ax.set_xlabel(f"magnetization of {N_SPINS} spins")
    ax.set_ylabel("free energy, nats")
    ax.legend(loc="upper center", fontsize=8)
    return figure
