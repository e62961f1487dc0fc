"""Inpainting.

The lower half of each image is missing. The machine completes each image, starting from 20 similar training images.
The last row shows twice the standard deviation of each pixel. The completion is uncertain where digits with the same
upper half differ.

Run time: 9 s.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from tapmachine import RBM, impute
from tapmachine.posterior import PosteriorOptions

x = torch.tensor(load_digits().data > 8).float()
train, test = x[:1500], x[1500:1600]
machine = RBM(n_hidden=64, epochs=30, random_state=0).fit(train.numpy()).machine_
gaps = test.clone()
gaps[:, 32:] = torch.nan
posterior = impute(machine, gaps, data=train, options=PosteriorOptions(n_neighbors=20, temperature=4.0))
print(f"wrong pixels in the lower half: {(posterior.states != test)[:, 32:].float().mean():.1%}")

deviation = posterior.variance.sqrt()
rows = {"original": test, "observed": gaps.nan_to_num(0.5), "completed": posterior.mean, "uncertainty": 2 * deviation}
figure, axes = plt.subplots(4, 12, figsize=(9, 3.4), layout="constrained")
for line, (name, images) in zip(axes, rows.items(), strict=True):
    for ax, image in zip(line, images, strict=False):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
figure.savefig("inpainting.png", dpi=110)
