"""Faces.

A machine with truncated Gaussian visible units and 100 hidden units is trained on the CBCL faces, images of 19×19 gray
values in [0, 1]. The receptive fields resemble faces that are lit from different directions. The data are not part of
the package. Pass the path of `cbcl_faces.npz`, which contains an array `train` of 19×19 bytes.

Run time: 50 s.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from tapmachine import RBM
from tapmachine.analysis import receptive_fields

path = sys.argv[1] if len(sys.argv) > 1 else "cbcl_faces.npz"
with np.load(path) as file:
    faces = file["train"].reshape(-1, 361) / 255
model = RBM(n_hidden=100, visible="truncated-gaussian", epochs=150, random_state=0).fit(faces[:2000])
fields = receptive_fields(model.machine_).fields.reshape(-1, 19, 19)

figure, axes = plt.subplots(5, 10, figsize=(9, 4.7), layout="constrained")
for ax, image in zip(axes.flat, fields, strict=False):
    limit = float(abs(image).max())
    ax.imshow(image, cmap="gray", vmin=-limit, vmax=limit)
    ax.axis("off")
figure.suptitle("50 of 100 receptive fields")
figure.savefig("faces.png", dpi=100)
