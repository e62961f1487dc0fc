"""Effect of faster number formats for matrix products on solutions, likelihoods and, on a GPU, training.

python benchmarks/precision.py FOLDER [--epochs 20] [--starts 1000] [--device cpu]

FOLDER contains MNIST's *-images-idx3-ubyte.gz. A machine of 784×500 units is trained on binary MNIST in float32, by
PCD. For each format, the script computes solutions from test images and their distances from the same solutions refined
in float64. It also estimates ln Z by annealed importance sampling. On a GPU, machines are also trained in each format,
by PCD and by TAP, and scored by annealed importance sampling.

`solve` and annealing always use float32, and this benchmark shows the reason. The formats are therefore simulated:
factors are rounded to the format and multiplied in float32. Since samples of binary units are 0 or 1 in any format,
annealing in a format is annealing of a machine with rounded weights.
"""

import argparse
import contextlib
import copy
import itertools
import math
import time
from pathlib import Path
from unittest import mock

import torch
from timing import seconds
from torch import Tensor

from tapmachine import PCD, Binary, TAPObjective, ais_log_likelihood, ais_log_partition, fit, rbm, solve
from tapmachine.accelerator.precision import MATMUL_PRECISIONS
from tapmachine.data.sources import read
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes import couplings
from tapmachine.training import Monitor, Objective, matmul_precision

N_TEMPERATURES, N_RUNS, TOLERANCES = 3000, 100, (1e-8, 1e-12)


def rounded(z: Tensor, format: str) -> Tensor:
    """Round a float32 tensor to the nearest values of a format."""
    if format == "bfloat16":
        return z.bfloat16().float()
    dropped = {"tf32": 13, "float32": 0}[format]
    if not dropped:
        return z
    bits = z.contiguous().view(torch.int32)
    return ((bits + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


@contextlib.contextmanager
def imitated(format: str):
    """Context in which the matrix products of TAP sweeps use rounded factors."""

    def products(mean: Tensor, variance: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        n = mean.shape[1]
        if mean.dtype == torch.float64:
            return mean @ both[:, :n].T, variance @ both[:, n:].T
        both = rounded(both, format)
        return rounded(mean, format) @ both[:, :n].T, rounded(variance, format) @ both[:, n:].T

    patches = {"products_in_one_launch": products, "_in_one_launch": lambda weights: True, "FEW_PARTICLES": math.inf}
    with mock.patch.multiple(couplings, **patches):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    images = (options.folder / f"{name}-images-idx3-ubyte.gz" for name in ("train", "t10k"))
    train, test = (torch.from_numpy(read(path).rows > 0.5).float().to(options.device) for path in images)

    def score(machine, format: str) -> tuple[float, float]:
        """Return the AIS log-likelihood of the test rows in a format, and the standard error of ln Z."""
        machine = copy.deepcopy(machine)
        machine.weights[0].data = rounded(machine.weights[0].data, format)
        estimate = ais_log_partition(machine, N_TEMPERATURES, N_RUNS, data=train)
        return float(ais_log_likelihood(machine, test, estimate).mean), float(estimate.standard_error)

    def trained(objective: Objective, format: str, seed: int) -> BoltzmannMachine:
        machine = rbm(Binary(784), Binary(500), generator=torch.Generator().manual_seed(seed)).to(options.device)
        with matmul_precision(format):
            fit(
                machine, train, epochs=options.epochs, objective=objective, seed=seed, monitor=Monitor(0), compile=False
            )
        return machine

    machine = trained(PCD(1, 100), "float32", 0)
    print("| products | AIS of a machine trained by PCD in float32 | ± of ln Z |\n| --- | --- | --- |")
    for format in MATMUL_PRECISIONS:
        print("| {} | {:.2f} | {:.2f} |".format(format, *score(machine, format)), flush=True)
    if not on_cpu:
        print("\n| trained by | products | seed | AIS | ± of ln Z | seconds |\n| " + "--- | " * 6)
        # bfloat16 applies to sweeps of TAP only, not to PCD
        for objective, formats in ((PCD(1, 100), MATMUL_PRECISIONS[:2]), (TAPObjective(), MATMUL_PRECISIONS)):
            for format, seed in itertools.product(formats, (0, 1)):
                begin = time.perf_counter()
                new = trained(objective, format, seed)
                taken = time.perf_counter() - begin
                row = (objective, format, seed, *score(new, "float32"), taken)
                print("| {} | {} | {} | {:.2f} | {:.2f} | {:.1f} |".format(*row), flush=True)

    exact = rbm(Binary(784), Binary(500)).to(options.device).double()
    exact.load_state_dict({name: value.double() for name, value in machine.state_dict().items()})
    starts = test[: options.starts]
    print(f"\nSolutions of the float32 machine from {len(starts)} test images\n")
    print(
        "| products | residual | seconds | converged | sweeps, median | largest distance from the solution: median, "
        "99 % | F, mean difference |\n| " + "--- | " * 7
    )
    for tolerance in TOLERANCES:
        for format in MATMUL_PRECISIONS:
            with imitated(format):
                found = solve(machine, starts, tol=tolerance)
                spent = seconds(lambda tol=tolerance: solve(machine, starts, tol=tol), options.device)
            followed = solve(exact, found.moments[0].mean.double(), tol=1e-16, max_sweeps=20_000)
            distance = (followed.moments[0].mean - found.moments[0].mean).abs().amax(1)[found.converged]
            apart = (found.free_energy - followed.free_energy)[found.converged].abs().mean()
            near, far = (float(distance.quantile(q)) for q in (0.5, 0.99)) if len(distance) else (math.nan, math.nan)
            print(
                f"| {format} | {tolerance:g} | {spent:.2f} | {float(found.converged.double().mean()):.4f} | "
                f"{float(found.n_sweeps.double().median()):.0f} | {near:.2g}, {far:.2g} | {float(apart):.2g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
