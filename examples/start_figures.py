"""Draw the figures of the page "What TAP is": fixed points, free energies, and a Hopfield memory.

    python examples/start_figures.py docs/images/start

The script runs for about 10 s on one core.
"""

import math
import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from tapmachine import TAP, NaiveMeanField, Spin, exact_log_partition, pairwise, rbm, solve

WEAK, STRONG = 0.6, 1.7  # couplings J of the ferromagnet; each pair of spins is coupled with J/N
BLUE, RED, ORANGE, GRAY = "#2f6fb0", "#d1495b", "#e0a030", "#9aa5b1"
LETTERS = {
    "T": "XXXXXXXX XXXXXXXX ...XX... ...XX... ...XX... ...XX... ...XX... ...XX...",
    "A": "...XX... ..XXXX.. .XX..XX. .XX..XX. .XXXXXX. .XXXXXX. .XX..XX. .XX..XX.",
    "P": "XXXXXX.. XX...XX. XX...XX. XXXXXX.. XX...... XX...... XX...... XX......",
}


def fixed_point(folder: Path) -> None:
    """Plot the iteration of m = tanh(Jm), which converges to an intersection of the curve with the diagonal."""
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained")
    grid = np.linspace(-1.05, 1.05, 400)
    for ax, coupling, starts in zip(axes, (WEAK, STRONG), ((0.95, -0.6), (0.12, -0.12)), strict=True):
        ax.plot(grid, grid, color=GRAY, lw=1, label="diagonal: new mean = m")
        ax.plot(grid, np.tanh(coupling * grid), color=BLUE, lw=2, label="new mean, tanh(Jm)")
        for start, color, star_size in zip(starts, (RED, ORANGE), (22, 11), strict=True):
            path, value = [(start, start)], start
            for _ in range(30):
                new = math.tanh(coupling * value)
                path += [(value, new), (new, new)]
                value = new
            ax.plot(*zip(*path, strict=True), color=color, lw=1)
            ax.plot(start, start, "o", color=color, ms=5)
            ax.plot(value, value, "*", color=color, ms=star_size if coupling < 1 else 13)  # both stars at 0 are visible
        if coupling > 1:
            ax.plot(0, 0, "o", color=BLUE, mfc="white", ms=8)
        count = "one solution" if coupling < 1 else "two stable solutions, one unstable"
        ax.set(title=f"J = {coupling}: {count}", xlabel="mean m of the other spins", xlim=(-1.05, 1.05))
        ax.set(ylim=(-1.05, 1.05))
    axes[0].set_ylabel("new mean of a spin")
    axes[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(folder / "fixed_point.png", dpi=130)


def free_energy(folder: Path, n: int = 12) -> None:
    """Plot F against the common mean of the spins (left), and the error of F against the coupling strength (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained")
    m = np.linspace(-0.999, 0.999, 600)
    divergence = 0.5 * ((1 + m) * np.log1p(m) + (1 - m) * np.log1p(-m))
    for coupling, color in ((WEAK, BLUE), (STRONG, RED)):
        pairs = (n - 1) / 2
        values = n * divergence - coupling * pairs * m**2 - coupling**2 * pairs / (2 * n) * (1 - m**2) ** 2
        machine = pairwise(Spin(n).double(), coupling / n * (1 - torch.eye(n, dtype=torch.float64)))
        exact = float(exact_log_partition(machine))
        left.plot(m, values, color=color, lw=2, label=f"J = {coupling}: TAP")
        left.axhline(-exact, color=color, lw=1, ls="--", label=f"J = {coupling}: −ln Z, exact")
        minima = [m[np.argmin(values)]] if coupling < 1 else [-m[np.argmin(values)], m[np.argmin(values)]]
        left.plot(minima, [values.min()] * len(minima), "*", color=color, ms=12)
        print(f"J = {coupling}: F = {values.min():.3f} at m = {abs(minima[0]):.3f}, exact -ln Z = {-exact:.3f}")
    left.plot(0, -(STRONG**2) * (n - 1) / (4 * n), "o", color=RED, mfc="white", ms=8)
    left.set(xlabel="common mean m of the spins", ylabel="free energy F, nats", ylim=(-4.5, 3))
    left.set(title=f"{n} spins with equal couplings")
    left.legend(frameon=False, fontsize=8, loc="upper center")

    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(10, 8, generator=generator, dtype=torch.float64) / 3 for _ in range(15)]
    strengths = [0.1 * 1.4**k for k in range(12)]  # standard deviation of the couplings times 3
    for name, scheme, color in (("naive mean field", NaiveMeanField(), GRAY), ("TAP", TAP(), BLUE)):
        errors = []
        for strength in strengths:
            machines = [rbm(Spin(10, field=0.3 * w[:, 0]), Spin(8, field=0.3 * w[0]), strength * w) for w in draws]
            estimates = [float(solve(machine, scheme=scheme, max_sweeps=5000).free_energy) for machine in machines]
            exact_values = [-float(exact_log_partition(machine)) for machine in machines]
            errors.append(median(abs(a - b) for a, b in zip(estimates, exact_values, strict=True)))
        right.loglog(strengths, errors, "o-", color=color, ms=4, label=name)
        print(name, *(f"{strength:.2f}: {error:.2g}" for strength, error in zip(strengths, errors, strict=True)))
    right.axhline(1, color=GRAY, lw=1, ls=":")
    right.set(xlabel="strength: standard deviation of couplings × 3", ylabel="median of |F + ln Z|, nats")
    right.set(title="15 machines, 10 visible and 8 hidden spins")
    right.legend(frameon=False)
    figure.savefig(folder / "free_energy.png", dpi=130)


def hopfield(folder: Path) -> None:
    """Plot three stored letters, their noisy versions, and the letters that the iteration converges to."""
    rows = [[1.0 if pixel == "X" else -1.0 for pixel in art.replace(" ", "")] for art in LETTERS.values()]
    stored = torch.tensor(rows, dtype=torch.float64)
    weights = 4 * torch.linalg.pinv(stored) @ stored  # the rule and strength of the page's example
    machine = pairwise(Spin(64).double(), (0.5 * (weights + weights.T)).fill_diagonal_(0.0))
    flips = torch.rand(stored.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    noisy = torch.where(flips, -stored, stored)
    solutions = solve(machine, noisy)
    columns = [("stored", stored), ("start: 20 % flipped", noisy), ("solution: means", solutions.moments[0].mean)]
    figure, axes = plt.subplots(3, 3, figsize=(5.8, 5.4), layout="constrained")
    for column, (title, images) in enumerate(columns):
        axes[0][column].set_title(title, fontsize=10)
        for row, image in enumerate(images):
            shown = axes[row][column].imshow(image.view(8, 8), cmap="RdBu_r", vmin=-1, vmax=1)
            axes[row][column].set(xticks=[], yticks=[])
    for row, value in enumerate(solutions.free_energy):
        axes[row][2].set_xlabel(f"F = {value:.1f}".replace("-", "−"), fontsize=9)
    figure.colorbar(shown, ax=axes, label="spin, or mean of the spin", ticks=[-1, -0.5, 0, 0.5, 1], shrink=0.6)
    figure.savefig(folder / "hopfield.png", dpi=130)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    target.mkdir(parents=True, exist_ok=True)
    fixed_point(target)
    free_energy(target)
    hopfield(target)
