"""Helmholtz, Gibbs and TAP free energies of a machine that is small enough for enumeration [fig:freeEnergies].

The paper shows a sketch; here, all are computed for spins with equal couplings.
"""

from collections.abc import Iterable

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from scipy.special import gammaln, logsumexp, softmax

from reproduction.figure import figure, panel
from reproduction.lab import Lab, Row, column, table
from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine, pairwise
from tapmachine.solver import TAP, random_start
from tapmachine.units import Spin

N_SPINS, N_POINTS, LARGEST_MEAN, LARGEST_FIELD = 12, 81, 0.99, 1.6
COUPLING = 1.5  # sum of a spin's couplings; TAP has two minima above about 1.1
FIELD = 0.04  # makes one of the minima deeper


def magnet() -> BoltzmannMachine:
    """Return a machine of spins with equal couplings."""
    weights = torch.full((N_SPINS, N_SPINS), COUPLING / N_SPINS, dtype=torch.float64).fill_diagonal_(0)
    return pairwise(Spin(N_SPINS, field=FIELD).double(), weights)


def enumerated(fields: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ln Z and m in additional fields, from sums over the number of spins that are up."""
    up = np.arange(N_SPINS + 1)
    binomial, total = gammaln(N_SPINS + 1) - gammaln(up + 1) - gammaln(N_SPINS - up + 1), 2 * up - N_SPINS
    exponent = binomial + COUPLING * (total**2 - N_SPINS) / (2 * N_SPINS) + np.outer(FIELD + fields, total)
    return logsumexp(exponent, 1) - N_SPINS * np.log(2 * np.cosh(FIELD)), softmax(exponent, 1) @ total / N_SPINS


@table("freeEnergies")
@torch.no_grad()
def free_energies(lab: Lab) -> Iterable[Row]:
    """Return the Gibbs (max_h [hNm − ln Z(h)]) and TAP free energies at each m, and the constants of the figure."""
    machine = magnet()
    tap = find_solutions(machine, random_start(machine, 100)).free_energy
    tried = LARGEST_FIELD * np.linspace(-1, 1, 201) ** 5
    # Evenly spaced fields would leave a gap, because m jumps near 0.
    fields = np.interp(np.linspace(-LARGEST_MEAN, LARGEST_MEAN, N_POINTS), enumerated(tried)[1], tried)
    for field, log_z, m in zip(fields, *enumerated(fields), strict=True):
        mean = torch.full((1, N_SPINS), m, dtype=torch.float64)
        tilt = Tilt(machine.layers[0].field_with_mean(mean), 0.0)
        yield {
            "m": float(m),
            "gibbs": float(field * N_SPINS * m - log_z),
            "tap": float(TAP().free_energy(machine, [Moments(mean, 1 - mean**2)], [tilt])),
            "helmholtz": -float(enumerated(np.zeros(1))[0][0]),
            "tap_lowest": float(tap.min()),
            "tap_highest": float(tap.max()),
            "tap_mean": float(tap.mean()),
        }


@figure("freeEnergies")
def draw(lab: Lab) -> Drawing:
    """Helmholtz, Gibbs and TAP free energies of a small machine."""
    rows = free_energies(lab)
    drawing, ax = panel(3.0)
    m, first = column(rows, "m"), {name: float(value) for name, value in rows[0].items()}
    ax.plot(m, column(rows, "tap"), color="C1", label="TAP, $F(m)$")
    ax.plot(m, column(rows, "gibbs"), "--", color="C0", label="Gibbs, exact")
    ax.axhline(first["helmholtz"], ls=":", color="k", label="Helmholtz, $-\\ln Z$")
    ax.axhspan(first["tap_lowest"], first["tap_highest"], color="0.9", lw=0, label="range of TAP minima")
    ax.axhline(first["tap_mean"], ls="-.", lw=0.9, color="C1", label="mean of TAP minima")
    low = min(first["tap_lowest"], first["helmholtz"])
    ax.set(xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1), ylim=(low - 0.2, low + 2.2))
    ax.set(xlabel="magnetization $m$", ylabel="free energy (nats)")
    drawing.legend(loc="outside upper center", ncols=2)
    return drawing
