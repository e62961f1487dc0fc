"""What faster formats for matrix products on a GPU do to solutions, likelihoods and training; and what they gain.

python benchmarks/precision.py FOLDER [--epochs 20] [--starts 10000] [--device cuda]

FOLDER holds MNIST's *-images-idx3-ubyte.gz. A machine of 784×500 units is trained on binary MNIST in float32. Then, for
each format: its solutions from test images, beside those that the same moments lead to in float64; −F of the data and
annealed importance sampling; and the likelihood of machines that were trained in that format from the start.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from timing import seconds

from tapmachine import (
    Binary,
    Monitor,
    ais_log_likelihood,
    ais_log_partition,
    fit,
    products_in,
    rbm,
    solve,
    tap_log_likelihood,
)
from tapmachine.datasets import read
from tapmachine.settings import PRODUCTS

N_TEMPERATURES, N_RUNS, TOLERANCES = 10_000, 500, (1e-8, 1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--starts", type=int, default=10_000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    images = (options.folder / f"{name}-images-idx3-ubyte.gz" for name in ("train", "t10k"))
    train, test = (torch.from_numpy(read(path).rows > 0.5).float().to(options.device) for path in images)

    def score(machine, format: str) -> tuple[float, float]:
        """By annealed importance sampling, worked out in a format: of the test rows, and its standard error."""
        with products_in(format):
            estimate = ais_log_partition(machine, N_TEMPERATURES, N_RUNS, data=train)
            return float(ais_log_likelihood(machine, test, estimate).mean), float(estimate.standard_error)

    machines, taken = {}, {}
    for format in PRODUCTS:
        new = rbm(Binary(784), Binary(500), generator=torch.Generator().manual_seed(0)).to(options.device)
        begin = time.perf_counter()
        with products_in(format):
            fit(new, train, epochs=options.epochs, monitor=Monitor(0), compile=False)
        machines[format], taken[format] = new, time.perf_counter() - begin
    print("| products | seconds of training | AIS | ± of ln Z | AIS of the first machine, in this | ± of ln Z |")
    print("| --- | --- | --- | --- | --- | --- |")
    for format, machine in machines.items():
        own, of_first = score(machine, "float32"), score(machines["float32"], format)
        numbers = " | ".join(f"{value:.2f}" for value in (*own, *of_first))
        print(f"| {format} | {taken[format]:.1f} | {numbers} |", flush=True)

    machine = machines["float32"]
    exact = rbm(Binary(784), Binary(500)).to(options.device).double()
    exact.load_state_dict({name: value.double() for name, value in machine.state_dict().items()})
    starts = test[: options.starts]
    print(f"\nSolutions of the first machine from {len(starts)} test images\n")
    print(
        "| products | residual | seconds | converged | sweeps, median | largest distance from the solution: median, "
        "99 % | F, mean difference | TAP log-likelihood |\n| " + "--- | " * 8
    )
    for tolerance in TOLERANCES:
        for format in PRODUCTS:
            with products_in(format):
                found = solve(machine, starts, tol=tolerance)
                spent = seconds(lambda tol=tolerance: solve(machine, starts, tol=tol), options.device)
                by_tap = tap_log_likelihood(machine, test[:1000], found)
            followed = solve(exact, found.moments[0].mean.double(), tol=1e-16, max_sweeps=20_000)
            distance = (followed.moments[0].mean - found.moments[0].mean).abs().amax(1)[found.converged]
            apart = (found.free_energy - followed.free_energy)[found.converged].abs().mean()
            near, far = (float(distance.quantile(q)) for q in (0.5, 0.99)) if len(distance) else (math.nan, math.nan)
            print(
                f"| {format} | {tolerance:g} | {spent:.2f} | {float(found.converged.double().mean()):.4f} | "
                f"{float(found.n_sweeps.double().median()):.0f} | {near:.2g}, {far:.2g} | {float(apart):.2g} | "
                f"{float(by_tap.mean):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
