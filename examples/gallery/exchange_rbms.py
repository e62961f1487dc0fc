"""Exchange with rbms.

tapmachine reads the HDF5 files of rbms and clusterbm to score and explore their machines, and it writes machines that
these packages can read. During training, rbms stores the machine after several updates in one file, and tapmachine can
read each of them. The panels show that the log-likelihood and the number of solutions increase during training. This
script requires h5py.

Run time: 8 s.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from tapmachine import Binary, TAPObjective, ais_log_likelihood, find_solutions, fit, rbm
from tapmachine.machine import read_rbms, write_rbms

x = (torch.tensor(load_digits().data) > 8).float()
path = Path(tempfile.mkdtemp()) / "digits.h5"
updates = (2, 5, 10, 20)
torch.manual_seed(0)


def write(machine, record):
    if record["epoch"] in updates:
        write_rbms(machine, path, update=record["epoch"])  # rbms reads this file


fit(rbm(Binary(64), Binary(32)), x[:1500], epochs=20, objective=TAPObjective(), callbacks=[write])

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
scores, counts = [], []
for update in updates:
    machine = read_rbms(path, update=update)
    scores.append(float(ais_log_likelihood(machine, x[1500:], schedule=500).mean))
    counts.append(len(find_solutions(machine, x[:200]).counts))
print(list(zip(updates, scores, counts, strict=True)))
left.plot(updates, scores, "o-")
left.set(xlabel="update", ylabel="log-likelihood of held-out digits, nats")
right.plot(updates, counts, "o-", color="#d1495b")
right.set(xlabel="update", ylabel="solutions from 200 starts")
figure.savefig("exchange_rbms.png", dpi=110)
