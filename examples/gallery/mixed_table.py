"""A mixed table with missing values.

The Palmer penguins table has columns for species, island and sex and four measurements, with some missing cells. `RBM`
accepts the DataFrame directly, imputes missing cells and predicts any column from the others. To measure the accuracy,
this script removes additional cells and compares their values with the imputed ones. Pass the path of `penguins.csv`.

Run time: 20 s.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tapmachine import RBM

path = sys.argv[1] if len(sys.argv) > 1 else "penguins.csv"
table = pd.read_csv(path)
numbers = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
random = np.random.default_rng(0)
removed = (random.random(table.shape) < 0.15) & table.notna().to_numpy()
holes = table.mask(removed)
model = RBM(n_hidden=16, random_state=0).fit(holes)
filled = model.impute(holes)
words = [name for name in table.columns if name not in numbers]
right = [(filled[name] == table[name])[removed[:, table.columns.get_loc(name)]].mean() for name in words]
print("correct:", ", ".join(f"{name} {share:.0%}" for name, share in zip(words, right, strict=True)))

figure, axes = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
for ax, name in zip(axes, numbers, strict=True):
    gap = removed[:, table.columns.get_loc(name)]
    truth, guess = table.loc[gap, name], filled.loc[gap, name]
    error, spread = np.sqrt(((truth - guess) ** 2).mean()), table[name].std()
    ax.plot(truth, guess, ".", color="#2f6fb0")
    ax.axline((truth.mean(), truth.mean()), slope=1, color="0.6", lw=0.8)
    ax.set(title=f"{name}\nerror {error:.3g}, std {spread:.3g}", xlabel="removed value")
    ax.title.set_fontsize(9)
axes[0].set_ylabel("imputed value")
figure.savefig("mixed_table.png", dpi=110)
