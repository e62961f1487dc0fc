"""Anomalies.

A machine trained on digits without any zeros scores held-out digits by −ln P. Left: on average, zeros have higher
anomaly scores than the other digits. Right: the surprise of each pixel given the rest of the image shows which pixels
are unusual.

Run time: 7 s.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from tapmachine import RBM
from tapmachine.posterior import anomaly_score, conditional_surprise

digits = load_digits()
x, labels = torch.tensor(digits.data > 8).float(), digits.target
train, test = x[:1200][labels[:1200] != 0], x[1200:]
odd = labels[1200:] == 0
machine = RBM(n_hidden=64, epochs=30, random_state=0).fit(train.numpy()).machine_
score = anomaly_score(machine, test).numpy()
print(f"area under the ROC curve: {roc_auc_score(odd, score):.3f}")

figure = plt.figure(figsize=(10, 2.8), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.3))
ax = left.subplots()
ax.hist([score[~odd], score[odd]], bins=25, density=True, label=["digits 1 to 9", "digit 0, not in training"])
ax.set(xlabel="−ln P, nats", yticks=[])
ax.legend()
surprise = conditional_surprise(machine, test)
order = [*score.argsort()[-4:], *score.argsort()[:4]]
axes = right.subplots(2, 8)
for column, row in enumerate(order):
    axes[0, column].imshow(test[row].view(8, 8), cmap="gray_r")
    axes[1, column].imshow(surprise[row].view(8, 8), cmap="magma", vmin=0, vmax=4)
for ax in axes.flat:
    ax.axis("off")
right.suptitle("most and least surprising digits", fontsize=10)
figure.savefig("anomalies.png", dpi=110)
