"""The landscape of a Hopfield network.

Left: three patterns are stored in the couplings of 100 spins. The panel shows the solutions found from 500 random
starts, by their overlap with the first two patterns. The solutions are the patterns, their mirror images, and mixtures
of all three patterns, which have a higher free energy. The size of a dot shows the number of starts that lead to the
solution. Right: an increasing number of patterns is stored in 200 spins. When the start is a pattern with a fifth of
its spins replaced at random, recall breaks down near 0.14 patterns per spin.

Run time: 5 s.
"""

import matplotlib.pyplot as plt
import torch

from tapmachine import Spin, find_solutions, pairwise, solve
from tapmachine.solver import noisy_start

generator = torch.Generator().manual_seed(3)


def memory(patterns, strength=5.0):
    n = patterns.shape[1]
    return pairwise(Spin(n).double(), (strength / n * patterns.T @ patterns).fill_diagonal_(0))


def random_patterns(count, n):
    return torch.randn(count, n, generator=generator, dtype=torch.float64).sign()


patterns = random_patterns(3, 100)
landscape = find_solutions(memory(patterns), random_patterns(500, 100))
print(landscape)
overlaps = landscape.solutions.moments[0].mean @ patterns.T / 100
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
dots = left.scatter(
    overlaps[:, 0], overlaps[:, 1], s=4 * landscape.counts, c=landscape.free_energy, cmap="viridis", edgecolors="k"
)
left.set(xlabel="overlap with pattern 1", ylabel="overlap with pattern 2", xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
figure.colorbar(dots, ax=left, label="free energy F, nats")

counts = [2, 6, 10, 14, 18, 22, 26, 30, 36, 42, 50]
recall = []
for count in counts:
    stored = random_patterns(count, 200)
    machine = memory(stored)
    solution = solve(machine, noisy_start(machine, stored, noise=0.2, generator=generator))
    recall.append(float((solution.moments[0].mean * stored).mean()))
right.plot([count / 200 for count in counts], recall, "o-")
right.axvline(0.138, color="0.6", lw=1, ls="--")
right.set(xlabel="stored patterns per spin", ylabel="mean overlap with the pattern", ylim=(0, 1.05))
figure.savefig("hopfield.png", dpi=110)
