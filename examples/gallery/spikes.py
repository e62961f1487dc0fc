"""Spikes.

The data are the activity of 15 cells of a retina in 40,000 time bins. A pairwise machine and a machine with 8 hidden
units are fitted to every other time bin; the remaining bins are held out. Both machines can be enumerated, so the
probabilities of all 32,768 patterns are exact. Left: probability of each pattern against its frequency in the held-out
data. Right: distribution of the number of simultaneously active cells. A model with independent cells underestimates
how often many cells are active at the same time. Pass the path of `spikes.npz`.

Run time: 35 s.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch

from tapmachine import Binary, exact_log_likelihood, fit, pairwise, rbm
from tapmachine.training import PCD

path = sys.argv[1] if len(sys.argv) > 1 else "spikes.npz"
with np.load(path) as file:
    x = torch.tensor(np.unpackbits(file["cells15"], axis=1)[:, :15]).float()
train, test = x[::2], x[1::2]
torch.manual_seed(0)
models = {
    "independent": rbm(Binary(15), Binary(1)),
    "pairwise": pairwise(Binary(15)),
    "RBM, 8 hidden units": rbm(Binary(15), Binary(8)),
}
bits = np.arange(2**15, dtype=">u2").view(np.uint8).reshape(-1, 2)
states = torch.tensor(np.unpackbits(bits, axis=1)[:, 1:]).float()
codes = 2.0 ** torch.arange(14, -1, -1)
frequency = torch.bincount((test @ codes).long(), minlength=2**15) / len(test)
active, seen = states.sum(1).long(), frequency > 0
shares = torch.zeros(16).index_add(0, active, frequency)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
for name, machine in models.items():
    machine.layers[0].fit_to(train)
    if name != "independent":
        fit(machine, train, epochs=10, objective=PCD(5))
    log_p = exact_log_likelihood(machine, states).values.float()
    entropy = -float((log_p.exp() * log_p).sum()) / np.log(2)
    score = float((frequency * log_p).sum()) / np.log(2)
    print(f"{name}: entropy {entropy:.3f} bits, log-likelihood {score:.3f} bits per time bin")
    left.loglog(frequency[seen], log_p.exp()[seen], ".", ms=3, alpha=0.6, label=name)
    right.semilogy(torch.zeros(16).index_add(0, active, log_p.exp()), "o-", ms=4, label=name)
right.semilogy(shares, "k*", ms=8, label="held-out data")
left.loglog([1e-5, 1], [1e-5, 1], "k-", lw=0.5)
left.set(xlabel="frequency of a pattern in held-out data", ylabel="probability under the model", ylim=(1e-9, 1))
right.set(xlabel="number of active cells", ylabel="probability", ylim=(1e-7, 1), xlim=(-0.5, 11))
right.legend(fontsize=8)
figure.savefig("spikes.png", dpi=110)
