"""Tour of the likelihoods: compare estimates of ln Z and show when each of them is accurate.

    python examples/likelihood_tour.py [folder]

Writes likelihood.png to the folder (default: demo) and prints a table.
"""

import sys
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from tapmachine import Spin, ais_log_partition, compare_likelihoods, exact_log_partition, gibbs, rbm, solve
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood import adaptive_schedule, linear_schedule
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import merge_solutions, random_start

N_VISIBLE, N_HIDDEN = 64, 16
STRENGTHS = [0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12]
TEMPERATURES = [3, 10, 30, 100, 300]
N_RUNS = 200
BLUE, RED, GRAY = "#2f6fb0", "#d1495b", "#9aa5b1"


def machine_of(strength: float) -> BoltzmannMachine:
    """Return a machine with two patterns, each of which is the weight vector of half of the hidden spins.

    If the weights are strong, the patterns and their negatives are modes of the distribution.
    """
    position = (torch.arange(N_VISIBLE, dtype=torch.float64) + 0.5) / N_VISIBLE
    patterns = torch.stack([torch.cos(torch.pi * (1 + k % 2) * position).sign() for k in range(N_HIDDEN)], dim=-1)
    return rbm(Spin(N_VISIBLE).double(), Spin(N_HIDDEN).double(), strength * patterns)


def draw_errors(axes: Axes) -> None:
    """Plot the errors of ln Z by TAP and by annealing against the strength of the couplings."""
    errors: dict[str, list[float]] = {"TAP, average": [], "TAP, log-sum-exp": [], "AIS": []}
    bars = []
    for strength in STRENGTHS:
        machine = machine_of(strength)
        exact = float(exact_log_partition(machine))
        found = merge_solutions(machine, solve(machine, random_start(machine, 300), tol=1e-14))
        free_energy = found.solutions.free_energy
        annealed = ais_log_partition(machine, 500)
        errors["TAP, average"].append(float(-free_energy.mean()) - exact)
        errors["TAP, log-sum-exp"].append(float((-free_energy).logsumexp(0)) - exact)
        errors["AIS"].append(float(annealed.log_partition) - exact)
        bars.append(3 * float(annealed.standard_error))
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.plot(STRENGTHS, errors["TAP, average"], "o-", color=BLUE, label="TAP, average")
    axes.plot(STRENGTHS, errors["TAP, log-sum-exp"], "s--", color=BLUE, mfc="white", label="TAP, log-sum-exp")
    axes.errorbar(STRENGTHS, errors["AIS"], bars, fmt="D", color=RED, capsize=3, markersize=4, label="AIS ± 3σ")
    axes.set(xlabel="strength of the couplings", ylabel="estimate − exact ln Z, nats", title="Error of ln Z")
    axes.legend(frameon=False)


def draw_bracket(axes: Axes) -> None:
    """Plot how forward and reverse annealing converge to the exact value with more temperatures."""
    machine = machine_of(0.1)
    exact = float(exact_log_partition(machine))
    long_run = ais_log_partition(machine, 1000, N_RUNS)
    samples = long_run.weighted_samples()
    for reverse, color, label in ((False, RED, "forward"), (True, BLUE, "reverse")):
        runs = [
            ais_log_partition(machine, n, N_RUNS, reverse=reverse, samples=samples if reverse else None).log_weights
            for n in TEMPERATURES
        ]
        low, middle, high = (torch.stack([torch.quantile(w - exact, q) for w in runs]) for q in (0.1, 0.5, 0.9))
        axes.fill_between(TEMPERATURES, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(TEMPERATURES, middle, "o-", color=color, label=f"{label} runs: median, 10 to 90 %")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(
        xscale="log",
        xlabel="number of temperatures",
        ylabel="log-weight of a run − ln Z, nats",
        title="Convergence of AIS",
    )
    axes.legend(frameon=False)


def draw_schedules(axes: Axes) -> None:
    """Plot the inverse temperatures of an adaptive and a linear schedule."""
    machine = machine_of(0.1)
    adaptive = adaptive_schedule(machine, 200)
    share = linear_schedule(200)
    axes.plot(share, share, color=GRAY, label="linear")
    axes.plot(share, adaptive, color=RED, label="adaptive")
    axes.set(xlabel="fraction of the temperatures", ylabel="inverse temperature β", title="Annealing schedules")
    axes.legend(frameon=False)


def main(folder: Path) -> None:
    machine = machine_of(0.1)
    generator = torch.Generator().manual_seed(0)
    x = gibbs(machine, random_start(machine, 400).mean.sign(), n_sweeps=200, generator=generator)[0]
    print(compare_likelihoods(machine, x[:200], x[200:], schedule=500))
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodWarning)  # few temperatures are used on purpose
        draw_errors(axes[0])
        draw_bracket(axes[1])
        draw_schedules(axes[2])
    for own in axes:
        own.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "likelihood.png", dpi=110)
    print(f"wrote {folder / 'likelihood.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
