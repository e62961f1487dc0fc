"""The tree of human genomes.

A machine is trained by TAP on 5,008 haplotypes at 805 sites, and its solutions are tracked through training. Each
column is an epoch, each dot is a solution, and lines connect each solution to its parent at an earlier epoch. Colors
show the most frequent super-population among the haplotypes that lead to each solution. The super-populations were not
used in training. Pass the path of `genomes_805snp.npz`.

Run time: 90 s.
"""

import copy
import sys
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch

from tapmachine import Binary, TAPObjective, fit, rbm
from tapmachine.landscape import track_landscape
from tapmachine.training import momentum_sgd

path = sys.argv[1] if len(sys.argv) > 1 else "genomes_805snp.npz"
with np.load(path) as file:
    x, labels = torch.tensor(file["haplotypes"]).float(), file["super_population"]
epochs, machines = (2, 4, 6, 8, 10, 15, 20, 30, 40), {}


def keep(machine, record):
    if record["epoch"] in epochs:
        machines[record["epoch"]] = copy.deepcopy(machine)


torch.manual_seed(0)
machine = rbm(Binary(805), Binary(100))
optimizer = momentum_sgd(machine, learning_rate=0.005, momentum=0.5, weight_decay=0.001)
objective = TAPObjective(n_sweeps=10, merged=False)
fit(machine, x, epochs=epochs[-1], objective=objective, optimizer=optimizer, centered=False, callbacks=[keep])
rows = torch.arange(0, len(x), 10)
found = track_landscape(machines, x[rows])
print(found)

own = labels[rows.numpy()][found.rows.numpy()]
names = sorted(set(own))
colors = dict(zip(names, plt.get_cmap("tab10").colors, strict=False))
figure, ax = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
order = {epochs[-1]: {}}
clusters = {epoch: found.tree.clusters(epoch).numpy() for epoch in epochs}
paths = np.stack([clusters[epoch] for epoch in epochs], 1)  # the ancestors of the solution of each haplotype
ranked = paths[np.lexsort(paths.T[::-1])]
for column, epoch in enumerate(epochs):
    for node in np.unique(paths[:, column]):
        members = paths[:, column] == node
        height = np.flatnonzero(ranked[:, column] == node).mean()
        order.setdefault(epoch, {})[node] = height
        most = Counter(own[members]).most_common(1)[0][0]
        ax.scatter(column, height, s=3 + 0.6 * members.sum(), color=colors[most], zorder=2)
        if column:
            parent = paths[members][0, column - 1]
            ax.plot((column - 1, column), (order[epochs[column - 1]][parent], height), color="0.7", lw=0.6, zorder=1)
for name in names:
    ax.scatter([], [], color=colors[name], label=name)
ax.legend(title="super-population", fontsize=8)
ax.set(xlabel="epoch", xticks=range(len(epochs)), xticklabels=epochs, yticks=[], ylabel="haplotypes")
figure.savefig("genome_tree.png", dpi=110)
