"""Denoising.

Held-out digits with 15 % of their pixels flipped are restored with a machine as the prior. The flip probability is
estimated from the noisy images. Gray levels are posterior means; intermediate values indicate that the machine is
uncertain.

Run time: 8 s.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from tapmachine import RBM, BinarySymmetric, denoise

x = torch.tensor(load_digits().data > 8).float()
train, test = x[:1500], x[1500:1700]
machine = RBM(n_hidden=64, epochs=30, random_state=0).fit(train.numpy()).machine_
noisy = BinarySymmetric(0.15).corrupt(test, torch.Generator().manual_seed(0))
posterior = denoise(machine, noisy, BinarySymmetric(), data=train)
wrong = ((noisy != test).float().mean(), (posterior.states != test).float().mean())
print(f"estimated {posterior.channel}; wrong pixels: {wrong[0]:.1%} before, {wrong[1]:.1%} after")

rows = {"original": test, "noisy": noisy, "restored": posterior.mean}
figure, axes = plt.subplots(3, 12, figsize=(9, 2.6), layout="constrained")
for line, (name, images) in zip(axes, rows.items(), strict=True):
    for ax, image in zip(line, images, strict=False):
        ax.imshow(image.view(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
figure.savefig("denoising.png", dpi=110)
