"""Deep machines.

A machine with two hidden layers, 64-48-24, is trained on digits. The lowest two layers are first pretrained as an RBM,
then all layers are trained together. Left: receptive fields of the first hidden layer. Right: receptive fields of the
second hidden layer, projected through the first; each combines several receptive fields of the first layer.

Run time: 32 s.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from tapmachine import Binary, dbm, fit, pretrain
from tapmachine.analysis import receptive_fields

x = (torch.tensor(load_digits().data) > 8).float()
torch.manual_seed(0)
machine = dbm([Binary(64), Binary(48), Binary(24)])
pretrain(machine, x, epochs=20)
history = fit(machine, x, epochs=20, warm_start=True)
print(f"the means of the second layer vary by {history['variation_2'][-1]:.2f} from row to row")

figure, axes = plt.subplots(4, 13, figsize=(9, 3.2), gridspec_kw={"width_ratios": [1] * 6 + [0.5] + [1] * 6})
for ax in axes.flat:
    ax.axis("off")
for layer, first in ((1, 0), (2, 7)):
    fields = receptive_fields(machine, layer=layer).fields.reshape(-1, 8, 8)
    for k in range(24):
        limit = float(abs(fields[k]).max())
        axes[k // 6, first + k % 6].imshow(fields[k], cmap="RdBu_r", vmin=-limit, vmax=limit)
figure.text(0.3, 0.93, "first hidden layer", ha="center")
figure.text(0.72, 0.93, "second hidden layer", ha="center")
figure.savefig("deep.png", dpi=110)
