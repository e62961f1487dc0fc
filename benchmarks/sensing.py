"""Recovery of images from few linear measurements, with a machine as the prior and by other methods.

    python benchmarks/sensing.py FOLDER --machine FILE [--images 100] [--device cuda] [--out sensing.csv]
        [--matrices gaussian,cosine,blur] [--noise 0,0.05] [--ratios 0.05,0.1,0.15,0.2,0.3,0.4,0.5]
        [--methods machine,alone,independent,oracle,autoencoder,lasso] [--lasso-images 20]
    python benchmarks/sensing.py FOLDER --machine FILE --pictures docs/images
    python benchmarks/sensing.py FOLDER --curves sensing.csv --pictures docs/images

FOLDER contains MNIST's *-images-idx3-ubyte.gz and vae_mnist_20_400.npz. FILE is a machine written by `tapmachine.save`
and trained on MNIST, either thresholded at one half (`Binary` units) or with values in [0, 1] (other units). The first
test images are used.

There are three kinds of matrices, all with rows of length 1: independent normal entries, random rows of the
two-dimensional cosine transform, and a Gaussian blur with a width of one pixel, measured at random pixels. Noise is the
standard deviation of a measurement. The methods are:

    machine      `recover`, which also starts from the three training images with the nearest measurements
    alone        `recover` without training images
    independent  `recover` with independent pixels, each fitted to the training images
    oracle       least squares on the nonzero pixels of the true image
    autoencoder  best fit of the latent vector of a variational autoencoder, by Adam from three starts
    lasso        scikit-learn's LassoCV in pixel space, with three folds

The results are one row for each method, matrix, noise and ratio. The columns are the mean squared error, the Matthews
correlation, the fraction of images recovered exactly, the fraction of signals converged, the coverage of 90 % intervals
of pixels with a variance, and the time in seconds.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.fft
import torch
from quality import images
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV
from sklearn.metrics import matthews_corrcoef
from torch import Tensor

from tapmachine import (
    Binary,
    LinearMeasurements,
    MagnitudeMeasurements,
    SignMeasurements,
    load,
    rbm,
    recover,
)
from tapmachine.data.errors import PosteriorWarning
from tapmachine.machine import BoltzmannMachine

SIDE, N = 28, 784
METHODS = ("machine", "alone", "independent", "oracle", "autoencoder", "lasso")
COLUMNS = ("mse", "mcc", "exact", "converged", "images", "within 90 %", "seconds")
WITHIN_90 = 1.6449


def matrix(kind: str, m: int) -> Tensor:  # (M, N)
    draws = np.random.default_rng(0)
    if kind == "gaussian":
        rows = draws.normal(size=(m, N))
    elif kind == "cosine":
        basis = scipy.fft.dctn(np.eye(N).reshape(N, SIDE, SIDE), axes=(1, 2), norm="ortho").reshape(N, N).T
        rows = basis[draws.permutation(N)[:m]]
    else:
        offsets = np.arange(SIDE)[:, None] - np.arange(SIDE)
        rows = np.kron(*[np.exp(-0.5 * offsets**2)] * 2)[draws.permutation(N)[:m]]
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)).float()


class Setting:
    """Images, their measurements, and the methods of recovery."""

    def __init__(self, machine: BoltzmannMachine, train: Tensor, x: Tensor, folder: Path) -> None:
        self.machine, self.train, self.x, self.folder = machine, train, x, folder
        units = type(machine.layers[0])(N).to(x.device).fit_to(train)
        self.independent = rbm(units, Binary(1).to(x.device), torch.zeros(N, 1, device=x.device))

    def run(self, method: str, y: Tensor, channel: LinearMeasurements, n_lasso: int) -> dict:
        start, deviation, converged, x = time.perf_counter(), None, None, self.x
        if method in ("machine", "alone", "independent"):
            prior = self.independent if method == "independent" else self.machine
            posterior = recover(prior, y, channel, data=self.train if method == "machine" else None)
            mean, states = posterior.mean, posterior.states
            deviation, converged = posterior.variance.clamp(min=0).sqrt(), float(posterior.converged.float().mean())
        else:
            F = channel.operator.dense().to(y)
            if method == "lasso":
                x, y = x[:n_lasso], y[:n_lasso]
            mean = {"oracle": self.oracle, "autoencoder": self.autoencoder, "lasso": self.lasso}[method](y, F)
            states = (mean > 0.5).float() if self.is_binary else mean
        taken = time.perf_counter() - start
        result = {
            "mse": float((mean - x).square().mean()),
            "mcc": float(matthews_corrcoef((x > 0.5).flatten().cpu(), (mean > 0.5).flatten().cpu())),
        }
        exact = (states == x).all(1) if self.is_binary else (mean - x).abs().amax(1) < 0.01
        result |= {"exact": float(exact.float().mean()), "converged": converged, "images": len(x)}
        if deviation is not None and not self.is_binary:
            free = deviation > 1e-3
            result["within 90 %"] = float(((mean - x).abs() <= WITHIN_90 * deviation)[free].float().mean())
        return result | {"seconds": round(taken, 2)}

    @property
    def is_binary(self) -> bool:
        return isinstance(self.machine.layers[0], Binary)

    def oracle(self, y: Tensor, F: Tensor) -> Tensor:
        mean = torch.zeros_like(self.x)
        for k, row in enumerate(self.x):
            support = row > 0
            mean[k, support] = torch.linalg.lstsq(F[:, support].cpu(), y[k].cpu(), driver="gelsd").solution.to(y)
        return mean

    def autoencoder(self, y: Tensor, F: Tensor) -> Tensor:
        with np.load(self.folder / "vae_mnist_20_400.npz") as file:
            names = [f"decoder_{part}_{layer}" for layer in (1, 2) for part in ("weight", "bias")]
            W1, b1, W2, b2 = (torch.from_numpy(file[name]).to(y) for name in names)
        best, mean = torch.full((len(y),), torch.inf, device=y.device), torch.zeros_like(self.x)
        for seed in range(3):
            draws = torch.Generator().manual_seed(seed)
            latent = torch.randn(len(y), 20, generator=draws).to(y).requires_grad_()
            optimizer = torch.optim.Adam([latent], 0.05)
            for _ in range(500):
                decoded = torch.sigmoid(torch.relu(latent @ W1 + b1) @ W2 + b2)
                misfit = (decoded @ F.T - y).square().sum(1)
                optimizer.zero_grad()
                (misfit + 1e-3 * latent.square().sum(1)).sum().backward()
                optimizer.step()
            better = misfit.detach() < best
            best, mean = (
                torch.where(better, misfit.detach(), best),
                torch.where(better[:, None], decoded.detach(), mean),
            )
        return mean

    def lasso(self, y: Tensor, F: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LassoCV(cv=3, alphas=20, positive=True, fit_intercept=False, max_iter=2000)
            fits = [model.fit(F.cpu().numpy(), row).coef_ for row in y.cpu().numpy()]
        return torch.from_numpy(np.stack(fits)).to(y).clamp(0, 1)


def pictures(setting: Setting, folder: Path, n_shown: int = 10) -> None:
    """Plot digits recovered by three methods at M/N = 0.1, and from signs and magnitudes."""
    from tapmachine.display.figures import new_figure
    from tapmachine.display.images import image_strips

    setting.x = setting.x[:n_shown]
    channel = LinearMeasurements(matrix("gaussian", N // 10), 0.0)
    y, F = channel.corrupt(setting.x), channel.operator.dense()
    rows = {
        "image": setting.x,
        "tapmachine": recover(setting.machine, y, channel, data=setting.train).mean,
        "autoencoder": setting.autoencoder(y, F),
        "LASSO": setting.lasso(y, F),
    }
    kinds = {"image": setting.x}
    for name, kind, ratio in (("signs", SignMeasurements, 1.0), ("magnitudes", MagnitudeMeasurements, 0.3)):
        channel = kind(matrix("gaussian", int(ratio * N)), 0.01)
        measured = channel.corrupt(setting.x)
        kinds[f"{name}, M = {len(measured[0])}"] = recover(setting.machine, measured, channel, data=setting.train).mean
    for name, strips, height in (("recovery", rows, 4.0), ("recovery_kinds", kinds, 3.0)):
        figure = new_figure(9, height)
        image_strips(figure.subplots(), {label: z.cpu() for label, z in strips.items()}, (SIDE, SIDE))
        figure.savefig(folder / f"{name}.png", dpi=100)


def curves(table: Path, folder: Path) -> None:
    """Plot the fraction of images recovered exactly and the mean squared error over the number of measurements."""
    from tapmachine.display.figures import new_figure

    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == "binary-MNIST" and row["matrix"] == "gaussian"]
    figure = new_figure(9, 3.4)
    axes = figure.subplots(1, 2)
    labels = {"machine": "tapmachine", "alone": "tapmachine, no examples", "independent": "independent pixels"}
    labels |= {"autoencoder": "autoencoder", "lasso": "LASSO"}
    for index, (method, label) in enumerate(labels.items()):
        for noise, style in (("0", "o-"), ("0.05", "s--")):
            some = [row for row in rows if row["method"] == method and row["noise"] == noise]
            ratios = [float(row["ratio"]) for row in some]
            axes[0].plot(ratios, [float(row["exact"]) for row in some], style, color=f"C{index}", markersize=4)
            axes[1].semilogy(
                ratios,
                [max(float(row["mse"]), 1e-6) for row in some],
                style,
                color=f"C{index}",
                markersize=4,
                label=label if noise == "0" else None,
            )
    axes[0].set(xlabel="measurements per pixel", ylabel="images recovered exactly", ylim=(-0.03, 1.03))
    axes[1].set(xlabel="measurements per pixel", ylabel="mean squared error")
    axes[1].legend(frameon=False, fontsize=8)
    axes[0].text(0.385, 0.13, "solid: no noise\ndashed: noise 0.05", fontsize=8)
    figure.savefig(folder / "recovery_curves.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("sensing.csv"))
    parser.add_argument("--matrices", default="gaussian,cosine,blur")
    parser.add_argument("--noise", default="0,0.05")
    parser.add_argument("--ratios", default="0.05,0.1,0.15,0.2,0.3,0.4,0.5")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--lasso-images", type=int, default=20)
    parser.add_argument("--pictures", type=Path, help="folder for figures")
    parser.add_argument("--curves", type=Path, help="CSV file of results to plot")
    options = parser.parse_args()
    if options.curves and options.pictures:
        curves(options.curves, options.pictures)
        return
    machine = load(options.machine).to(options.device)
    data = "binary-MNIST" if isinstance(machine.layers[0], Binary) else "real-MNIST"
    train, test = (x.to(options.device) for x in images(options.folder, data))
    setting = Setting(machine, train, test[: options.images], options.folder)
    warnings.simplefilter("ignore", PosteriorWarning)  # the table contains the fraction of converged signals
    if options.pictures:
        pictures(setting, options.pictures)
        return
    with options.out.open("w", newline="") as file:
        table = None
        for kind in options.matrices.split(","):
            for noise in map(float, options.noise.split(",")):
                for ratio in map(float, options.ratios.split(",")):
                    channel = LinearMeasurements(matrix(kind, int(ratio * N)), noise)
                    y = channel.corrupt(setting.x)
                    for method in options.methods.split(","):
                        row = {"data": data, "matrix": kind, "noise": noise, "ratio": ratio, "method": method}
                        row |= {
                            "mse": 0,
                            "mcc": 0,
                            "exact": 0,
                            "converged": "",
                            "images": 0,
                            "within 90 %": "",
                            "seconds": 0,
                        }
                        row |= setting.run(method, y, channel, options.lasso_images)
                        if table is None:
                            table = csv.DictWriter(file, list(row))
                            table.writeheader()
                        table.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
                        file.flush()
                        print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
