"""Tour of the solver: recall patterns with a Hopfield machine, and measure the accuracy of free energies.

    python examples/solver_tour.py [folder]

Writes solver.png to the folder (default: demo) and prints the results.
"""

import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter
from torch import Tensor

from tapmachine import TAP, NaiveMeanField, Spin, ThirdOrderTAP, exact_log_partition, pairwise, rbm, solve
from tapmachine.beliefs import Solution
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import Scheme

LETTERS = {
    "T": "XXXXXXXX XXXXXXXX ...XX... ...XX... ...XX... ...XX... ...XX... ...XX...",
    "A": "...XX... ..XXXX.. .XX..XX. .XX..XX. .XXXXXX. .XXXXXX. .XX..XX. .XX..XX.",
    "P": "XXXXXX.. XX...XX. XX...XX. XXXXXX.. XX...... XX...... XX...... XX......",
}
SIDE = 8
FLIPPED = 0.2  # fraction of the pixels
SCALES = [0.02 * 1.7**k for k in range(7)]
N_MACHINES = 9
SCHEMES: dict[str, tuple[Scheme, int, str]] = {
    "NaiveMeanField": (NaiveMeanField(), 2, "#9aa5b1"),
    "TAP": (TAP(), 3, "#2f6fb0"),
    "ThirdOrderTAP": (ThirdOrderTAP(), 4, "#d1495b"),
}


def patterns() -> Tensor:  # (3, 64), spins
    """The letters T, A and P."""
    rows = [[1.0 if pixel == "X" else -1.0 for pixel in art.replace(" ", "")] for art in LETTERS.values()]
    return torch.tensor(rows, dtype=torch.float64)


def hopfield(stored: Tensor) -> BoltzmannMachine:
    """Return a machine whose solutions are the stored patterns, with couplings from the pseudo-inverse."""
    projector = torch.linalg.pinv(stored) @ stored
    weights = 4.0 * (projector + projector.T) / 2
    return pairwise(Spin(stored.shape[1]).double(), weights.fill_diagonal_(0.0))


def errors_of_the_free_energy(generator: torch.Generator) -> dict[str, list[float]]:
    """Return the median of |F − F_exact| over small random machines, for every scheme and scale of the couplings."""
    draws = [torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(N_MACHINES)]
    found: dict[str, list[float]] = {name: [] for name in SCHEMES}
    for scale in SCALES:
        machines = [rbm(Spin(6, field=0.5 * w[:, 0]), Spin(5, field=0.5 * w[0]), scale * w) for w in draws]
        exact = [-float(exact_log_partition(machine)) for machine in machines]
        for name, (scheme, _, _) in SCHEMES.items():
            values = [float(solve(machine, scheme=scheme, tol=1e-24).free_energy) for machine in machines]
            found[name].append(median(abs(a - b) for a, b in zip(values, exact, strict=True)))
    return found


def draw_recall(axes: list[list[Axes]], stored: Tensor, noisy: Tensor, solution: Solution) -> None:
    rows = (("stored", stored), ("start", noisy), ("solution", solution.moments[0].mean))
    for own, (name, images) in zip(axes, rows, strict=True):
        for ax, image in zip(own, images, strict=True):
            ax.imshow(image.view(SIDE, SIDE), cmap="RdBu_r", vmin=-1, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
        own[0].set_ylabel(name)
    for ax, value in zip(axes[-1], solution.free_energy, strict=True):
        ax.set_xlabel(f"F = {value:.1f}", fontsize=8)


def draw_errors(ax: Axes, errors: dict[str, list[float]]) -> None:
    for name, (_, order, color) in SCHEMES.items():
        ax.loglog(SCALES, errors[name], "o", ms=4, color=color, label=f"{name}: slope {order}")
        line = [errors[name][0] * (scale / SCALES[0]) ** order for scale in SCALES]
        ax.loglog(SCALES, line, "-", lw=1, color=color, alpha=0.6)
    ax.set(xlabel="scale s of the couplings", ylabel="|F − F exact|")
    ax.set_xticks(ticks := [0.02, 0.05, 0.1, 0.2, 0.5], list(map(str, ticks)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title("median over 9 machines of 6×5 spins, W ~ N(0, s²)", fontsize=9)
    ax.legend(frameon=False, fontsize=8)


def main(folder: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    stored = patterns()
    flips = torch.rand(stored.shape, generator=generator) < FLIPPED
    noisy = torch.where(flips, -stored, stored)
    recalled = solve(hopfield(stored), noisy)
    overlap = (recalled.moments[0].mean * stored).mean(-1)
    print(f"Hopfield machine, {FLIPPED:.0%} of the pixels flipped: {recalled}")
    for letter, value in zip(LETTERS, overlap, strict=True):
        print(f"  {letter}: overlap with the stored pattern {value:.3f}")

    errors = errors_of_the_free_energy(generator)
    middle = min(range(len(SCALES)), key=lambda k: abs(SCALES[k] - 0.1))
    for name in SCHEMES:
        print(f"{name}: error of F {errors[name][middle]:.1e} for couplings of scale {SCALES[middle]:.2f}")

    figure = plt.figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    draw_recall(left.subplots(3, len(LETTERS)).tolist(), stored, noisy, recalled)
    draw_errors(right.subplots(), errors)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "solver.png", dpi=140)
    print(f"wrote {folder / 'solver.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
