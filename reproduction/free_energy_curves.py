"""Helmholtz, Gibbs and TAP free energies of a machine that is small enough for enumeration [fig:freeEnergies].

The paper shows a sketch. This module computes the three free energies for spins with equal couplings, as functions of
the magnetization m.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from reproduction.drawing import EXACT_COLOR, TAP_COLOR, numbers
from reproduction.lab import Lab, Row
from reproduction.models import Model
from reproduction.style import BLUE, COLUMN, styled
from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.beliefs import Moments, Tilt
from tapmachine.display.figures import new_figure
from tapmachine.likelihood.exact import ExactMoments, exact_log_partition, exact_moments
from tapmachine.machine import BoltzmannMachine, pairwise
from tapmachine.machine.conditioning import condition
from tapmachine.solver import TAP, random_start
from tapmachine.units import Spin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Helmholtz, Gibbs and TAP free energies of a small machine"
N_SPINS = 12
COUPLING = 1.5  # sum of a spin's couplings; TAP has two minima above about 1.1
FIELD = 0.04  # makes one of the minima deeper
LARGEST_FIELD = 1.6
LARGEST_MEAN = 0.99
N_POINTS = 81


def needed(lab: Lab) -> list[Model]:
    """Return an empty list: no models are trained before drawing."""
    return []


def magnet() -> BoltzmannMachine:
    """Return a machine of spins with equal couplings."""
    weights = torch.full((N_SPINS, N_SPINS), COUPLING / N_SPINS, dtype=torch.float64).fill_diagonal_(0)
    return pairwise(Spin(N_SPINS, field=FIELD).double(), weights)


def _magnetized(machine: BoltzmannMachine, field: float) -> ExactMoments:
    return exact_moments(condition(machine, Tilt(torch.full((N_SPINS,), field, dtype=torch.float64), 0.0)))


def _fields(machine: BoltzmannMachine) -> list[float]:
    """Return fields at which m is evenly spaced. Evenly spaced fields would leave a gap, because m jumps near 0."""
    tried = LARGEST_FIELD * torch.linspace(-1, 1, 201, dtype=torch.float64) ** 5
    means = [float(_magnetized(machine, field).moments[0].mean.mean()) for field in tried.tolist()]
    wanted = np.linspace(-LARGEST_MEAN, LARGEST_MEAN, N_POINTS)
    return [float(field) for field in np.interp(wanted, means, tried.numpy())]


@torch.no_grad()
def table(lab: Lab) -> list[Row]:
    """Return the Gibbs (max_h [hNm − ln Z(h)]) and TAP free energies at each m, and the constants of the figure."""

    def make() -> Iterable[Row]:
        machine = magnet()
        tap = find_solutions(machine, random_start(machine, 100)).free_energy
        exact = -float(exact_log_partition(machine))
        for field in _fields(machine):
            tilted = _magnetized(machine, field)
            m = tilted.moments[0].mean.mean()
            mean = m.expand(1, N_SPINS)
            units = machine.layers[0]
            tilt = Tilt(units.field_with_mean(mean), 0.0)
            yield {
                "m": float(m),
                "gibbs": float(field * N_SPINS * m - tilted.log_partition),
                "tap": float(TAP().free_energy(machine, [Moments(mean, 1 - mean**2)], [tilt])),
                "helmholtz": exact,
                "tap_lowest": float(tap.min()),
                "tap_highest": float(tap.max()),
                "tap_mean": float(tap.mean()),
            }

    return lab.table("freeEnergies", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    rows = table(lab)
    figure = new_figure(COLUMN, 3.0)
    ax = figure.subplots()
    m, gibbs, tap = numbers(rows, "m", "gibbs", "tap")
    first = {name: float(value) for name, value in rows[0].items()}
    ax.axhspan(first["tap_lowest"], first["tap_highest"], color="0.9", lw=0, label="range of TAP minima")
    ax.axhline(first["tap_mean"], ls="-.", lw=0.9, color=TAP_COLOR, label="mean of TAP minima")
    ax.plot(m, tap, color=TAP_COLOR, label="TAP, $F(m)$")
    ax.plot(m, gibbs, "--", color=BLUE, label="Gibbs, exact")
    ax.axhline(first["helmholtz"], ls=":", color=EXACT_COLOR, label="Helmholtz, $-\\ln Z$")
    low = min(first["tap_lowest"], first["helmholtz"])
    ax.set(xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
    ax.set_ylim(low - 0.2, low + 2.2)
    ax.set_xlabel("magnetization $m$")
    ax.set_ylabel("free energy (nats)")
    handles, labels = ax.get_legend_handles_labels()
    order = [2, 3, 4, 0, 1]
    figure.legend([handles[n] for n in order], [labels[n] for n in order], loc="outside upper center", ncols=2)
    return figure
