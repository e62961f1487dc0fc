"""Errors of every scheme relative to enumeration, on machines with independent couplings of increasing strength.

python benchmarks/schemes.py [--machines 200] [--out FILE.csv]

The machines have spins with couplings W ~ N(0, s²/N), N = 20, and fields of standard deviation 0.3. They are pairwise
machines, and RBMs with 12 visible and 8 hidden units. Each value is the median over the machines on which all schemes
converged. The number of converged machines is shown for each scheme.
"""

import argparse
import csv
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import torch

from tapmachine import Spin, pairwise, rbm
from tapmachine.analysis import compare_schemes
from tapmachine.machine import BoltzmannMachine

N = 20
SCALES = (0.25, 0.5, 0.75, 1.0)
ERRORS = ("log_partition_error", "mean_error", "correlation_error")


def drawn(kind: str, scale: float, seed: int) -> BoltzmannMachine:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind == "pairwise":
        w = scale * N**-0.5 * normal(N, N).triu(1)
        return pairwise(Spin(N, 0.3 * normal(N)).double(), weights=w + w.T)
    visible, hidden = Spin(12, 0.3 * normal(12)).double(), Spin(8, 0.3 * normal(8)).double()
    return rbm(visible, hidden, weights=scale * N**-0.5 * normal(12, 8))


def measured(task: tuple[str, float, int]) -> list[dict]:
    torch.set_num_threads(1)
    kind, scale, seed = task
    rows = compare_schemes(drawn(*task), max_sweeps=5000).as_dicts()
    return [{"machine": kind, "scale": scale, "seed": seed} | row for row in rows]


def table(rows: list[dict]) -> None:
    for kind in ("pairwise", "rbm"):
        for error in ERRORS:
            print(f"{kind}, {error}, median over machines on which all schemes converged (number converged):")
            for scale in SCALES:
                own = [row for row in rows if row["machine"] == kind and row["scale"] == scale]
                names = list(dict.fromkeys(row["scheme"] for row in own))
                good = {
                    name: {r["seed"] for r in own if r["scheme"] == name and r[error] == r[error]} for name in names
                }
                everywhere = set.intersection(*good.values()) if good else set()
                cells = []
                for name in names:
                    values = [abs(r[error]) for r in own if r["scheme"] == name and r["seed"] in everywhere]
                    cells.append(f"{name} {median(values) if values else float('nan'):.2e} ({len(good[name])})")
                print(f"  s = {scale}: {len(everywhere)} machines: " + ", ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = ("rbm", "pairwise")
    tasks = [(kind, scale, seed) for kind in kinds for scale in SCALES for seed in range(options.machines)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [row for found in pool.map(measured, tasks, chunksize=4) for row in found]
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
