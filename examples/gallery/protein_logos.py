"""Protein logos.

A machine with one categorical visible unit for each site of the WW protein domain is trained on 7,503 distinct aligned
sequences. Row weights reduce the influence of similar sequences. The logos show the three hidden units with the
largest weights: letters above the line activate a unit, letters below the line inhibit it. Pass the path of
`msa_ww_domain.npz`.

Run time: 21 s.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from tapmachine import RBM

path = sys.argv[1] if len(sys.argv) > 1 else "msa_ww_domain.npz"
with np.load(path) as file:
    msa, alphabet = np.unique(file["msa"], axis=0), str(file["alphabet"])
similar = np.array([(msa == row).mean(1) > 0.8 for row in msa]).sum(1)
model = RBM(n_hidden=20, visible="categorical", epochs=20, random_state=0).fit(msa, sample_weight=1 / similar)
weights = model.machine_.weights[0].detach().view(msa.shape[1], -1, 20).numpy()
weights = weights - weights.mean(1, keepdims=True)
groups = {"DE": "#d1495b", "KRH": "#2f6fb0", "AVILMFYW": "#333333", "STNQ": "#5a9e4b", "CGP-": "#e0a030"}
color = {letter: value for letters, value in groups.items() for letter in letters}

figure, axes = plt.subplots(3, 1, figsize=(9, 6), layout="constrained", sharex=True)
for ax, unit in zip(axes, np.abs(weights).sum((0, 1)).argsort()[::-1], strict=False):
    for site, column in enumerate(weights[:, :, unit]):
        heights = [0.0, 0.0]
        for state in np.abs(column).argsort():
            if abs(column[state]) < 0.3:
                continue
            outline = TextPath((0, 0), alphabet[state], size=1, prop=FontProperties(weight="bold"))
            box = outline.get_extents()
            side = int(column[state] < 0)
            bottom = heights[side] + min(column[state], 0)
            heights[side] += column[state]
            scale = (0.9 / max(box.width, 0.3), abs(column[state]) / max(box.height, 0.1))
            place = Affine2D().translate(-box.x0, -box.y0).scale(*scale).translate(site + 0.55, bottom)
            ax.add_patch(PathPatch(place.transform_path(outline), color=color[alphabet[state]], lw=0))
    ax.axhline(0, color="k", lw=0.8)
    ax.autoscale_view()
    ax.set(ylabel=f"weights of unit {unit}", xlim=(0.4, msa.shape[1] + 0.6))
axes[-1].set_xlabel("site")
figure.savefig("protein_logos.png", dpi=100)
