"""Cost of the moments of each unit type, relative to torch.sigmoid on a tensor of the same size.

    python benchmarks/units.py

Each result is a median of ratios, with alternating measurements in the same process.
"""

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.benchmark import Timer

from tapmachine import Binary, Gaussian, Spin, Tilt, TruncatedGaussBernoulli, TruncatedGaussian
from tapmachine.units import Units

# Quantiles of v = V + A and of u − 4.41 − 0.269 v, u = U + B, seen on the visible side over 60 epochs of TAP training
# of a 361 × 256 machine on the CBCL faces at the paper's settings (3 million values).
QUANTILES = np.array([0, 0.1, 1, 5, 25, 50, 75, 95, 99, 99.9, 100]) / 100
PRECISIONS = [3.13, 3.3, 4.33, 6.79, 16.12, 21.53, 25.39, 31.16, 36.28, 40.42, 40.43]
FIELD_RESIDUALS = [-15.31, -9.08, -6.29, -3.97, -1.47, 0.17, 1.62, 3.42, 4.85, 7.5, 12.75]


def training_mix(
    n_elements: int, hard_share: float, generator: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return u and v as they occur in training, and a fraction of extreme elements that need the window rule."""
    v = np.interp(generator.random(n_elements), QUANTILES, PRECISIONS)
    u = 4.41 + 0.269 * v + np.interp(generator.random(n_elements), QUANTILES, FIELD_RESIDUALS)
    hard = generator.random(n_elements) < hard_share
    u = np.where(hard, generator.normal(0, 300, n_elements), u)
    v = np.where(hard, generator.normal(0, 300, n_elements), v)
    return torch.tensor(u, dtype=torch.float32), torch.tensor(v, dtype=torch.float32)


def ratio(run: Callable[[], object], reference: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median ratio of run time to reference time, and the median reference time in milliseconds."""
    ratios, references = [], []
    for _ in range(repeats):
        times = [
            Timer("f()", globals={"f": f}, num_threads=torch.get_num_threads())
            .blocked_autorange(min_run_time=0.3)
            .median
            for f in (reference, run)
        ]
        ratios.append(times[1] / times[0])
        references.append(times[0] * 1e3)
    return statistics.median(ratios), statistics.median(references)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="measure functions compiled by torch.compile")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 1000
    shape = (arguments.elements // n, n)
    x = torch.randn(shape).to(arguments.device)

    def sigmoid() -> torch.Tensor:
        return torch.sigmoid(x)

    def report(name: str, function: Callable[[Tilt], object], tilt: Tilt) -> None:
        called = torch.compile(function, dynamic=False) if arguments.compile else function
        with torch.no_grad():
            called(tilt)
            multiple, reference = ratio(lambda: called(tilt), sigmoid, arguments.repeats)
        print(f"{name:58} {multiple:7.1f} ×   (sigmoid {reference:.3f} ms)", flush=True)

    where = f"{torch.get_num_threads()} threads" if arguments.device == "cpu" else torch.cuda.get_device_name()
    how = ", compiled" if arguments.compile else ""
    print(f"float32, {shape[0]} × {n} elements, {where}, torch {torch.__version__}{how}")
    for hard_share in (0.0, 0.001, 0.01, 0.1, 1.0):
        units = TruncatedGaussian(n, field=10.0, precision=20.0).to(arguments.device)
        u, v = (z.view(shape).to(arguments.device) for z in training_mix(shape[0] * n, hard_share, rng))
        tilt = Tilt(u - 10.0, v - 20.0)
        report(
            f"TruncatedGaussian, mean + variance + ln Z, {hard_share:.1%} hard", units.log_partition_and_moments, tilt
        )
    others: list[Units] = [Binary(n), Spin(n), Gaussian(n), TruncatedGaussBernoulli(n, field=10.0, precision=20.0)]
    for units in others:
        units = units.to(arguments.device)
        tilt = Tilt(0.1 * x, -0.01 * x.abs())
        report(f"{type(units).__name__}, mean + variance", units.moments, tilt)


if __name__ == "__main__":
    main()
