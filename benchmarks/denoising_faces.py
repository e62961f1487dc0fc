"""Removal of Gaussian noise from CBCL faces, compared to shrinkage and to scikit-image, if installed.

python benchmarks/denoising_faces.py FOLDER MACHINE [--images 200] [--out FIGURE.png]

FOLDER contains cbcl_faces.npz. MACHINE is a .safetensors file, or an .npz file from `quality.py FOLDER cbcl-256 --out`.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from quality import images
from torch import Tensor

from tapmachine import Binary, Gaussian, GaussianNoise, TruncatedGaussian, denoise, load, rbm
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_strips
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.baselines import pointwise_estimate

SIDE = 19


def read_machine(path: Path) -> BoltzmannMachine:
    if path.suffix != ".npz":
        return load(path)
    with np.load(path) as file:
        state = {name: torch.from_numpy(file[name]) for name in file.files}
    n, n_hidden = state["weights.0"].shape
    machine = rbm(TruncatedGaussian(n), Binary(n_hidden))
    machine.load_state_dict(state)
    return machine


def by_skimage(y: Tensor, sigma: float) -> dict[str, Tensor]:
    try:
        from skimage.restoration import denoise_nl_means, denoise_tv_chambolle
    except ImportError:
        return {}
    pictures = y.reshape(-1, SIDE, SIDE).numpy()

    def best(function, settings) -> Tensor:
        """Return the denoised images for each setting."""
        results = [np.stack([function(image, value) for image in pictures]) for value in settings]
        return [torch.from_numpy(z.reshape(len(y), -1)) for z in results]

    return {
        "TV": best(
            lambda image, weight: denoise_tv_chambolle(image, weight=weight),
            [f * sigma for f in (0.5, 0.75, 1, 1.5, 2)],
        ),
        "NL means": best(
            lambda image, h: denoise_nl_means(image, patch_size=3, patch_distance=6, h=h, sigma=sigma, fast_mode=True),
            [f * sigma for f in (0.4, 0.6, 0.8, 1.0)],
        ),
    }


def psnr(x: Tensor, estimate: Tensor) -> float:
    """Return the peak signal-to-noise ratio in decibels of values in [0, 1]."""
    return float(-10 * (x.double() - estimate.to(x.device).double()).square().mean().log10())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("machine", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--sigma", type=float, nargs="*", default=(0.1, 0.2, 0.3, 0.4, 0.5))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    train, test = images(options.folder, "CBCL")
    x = test[: options.images]
    machine = read_machine(options.machine)
    prior = Gaussian(train.shape[1]).fit_to(train)
    print(
        f"{'sigma':>6}{'noisy':>8}{'shrinkage':>11}{'TAP':>8}{'examples':>10}{'TV':>8}{'NL':>8}{'found σ':>9}   seconds"
    )
    for sigma in options.sigma:
        channel = GaussianNoise(sigma)
        y = channel.corrupt(x, units=machine.layers[0])
        shrunk = pointwise_estimate(prior, y, channel).mean.clamp(0, 1)
        start = time.perf_counter()
        posterior = denoise(machine, y, channel)
        seconds = time.perf_counter() - start
        near = denoise(machine, y, channel, data=train)
        found = denoise(machine, y[:50], GaussianNoise(), starts=[None]).channel.sigma
        others = {name: max(psnr(x, z) for z in results) for name, results in by_skimage(y, sigma).items()}
        numbers = [psnr(x, z) for z in (y, shrunk, posterior.mean, near.mean)]
        print(
            f"{sigma:6}{numbers[0]:8.2f}{numbers[1]:11.2f}{numbers[2]:8.2f}{numbers[3]:10.2f}{others.get('TV', 0):8.2f}"
            f"{others.get('NL means', 0):8.2f}{found:9.3f}   {seconds:.1f} s for {len(y)} images, {posterior}",
            flush=True,
        )
        if options.out and sigma == options.sigma[len(options.sigma) // 2]:
            figure = new_figure(9, 3.2)
            rows = {"original": x, "noisy": y.clamp(0, 1), "shrinkage": shrunk, "TAP": posterior.mean}
            image_strips(figure.subplots(), {name: z[:12] for name, z in rows.items()}, (SIDE, SIDE))
            figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
