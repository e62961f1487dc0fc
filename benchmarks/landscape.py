"""Time to find and to merge solutions.

python benchmarks/landscape.py                                    merge 10,000 solutions of 1,284 units
python benchmarks/landscape.py RUN --starts 10000 --device cuda   solve all kept machines of a run
"""

import argparse
import resource
import time
from pathlib import Path

import torch

from tapmachine.landscape import track_landscape
from tapmachine.runs.session import Session
from tapmachine.solver.merging import groups


def merging(n_points: int = 10_000, n_units: int = 1_284, orders: int = 20) -> None:
    generator = torch.Generator().manual_seed(0)
    for n_different in (1, 100, 2_500, n_points):
        centers = (torch.rand(n_different, n_units, generator=generator) < 0.3).double()
        which = torch.arange(n_points) % n_different
        noise = 1e-6 * torch.randn(n_points, n_units, generator=generator, dtype=torch.float64)
        points = (centers[which] + noise) / n_units**0.5
        seconds, same = [], True
        for _ in range(orders):
            order = torch.randperm(n_points, generator=generator)
            start = time.perf_counter()
            found = groups(points[order], 1e-3)
            seconds.append(time.perf_counter() - start)
            pairs = torch.stack((found, which[order])).unique(dim=1)
            same &= pairs.shape[1] == n_different == int(found.max()) + 1
        print(
            f"{n_points} solutions of {n_units} units, {n_different} different: {max(seconds):.2f} s at most, "
            f"{orders} orders, {'always the correct' if same else 'NOT always the correct'} partition"
        )


def tracking(run: Path, starts: int, device: str, epochs: list[int] | None) -> None:
    last = start = time.perf_counter()

    def tell(found) -> None:
        nonlocal last
        now = time.perf_counter()
        text = f"epoch {found.epoch}: {found.n_solutions} solutions, {int(found.stable.sum())} stable, "
        print(f"{text}{found.n_not_converged} not converged, {now - last:.2f} s", flush=True)
        last = now

    session = Session(run, device)
    found = track_landscape(
        session.machines, session.training_data().train, n_starts=starts, epochs=epochs, callback=tell
    )
    total = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tree = total - last + start
    text = f"{len(found.epochs)} epochs, {len(found.starts)} starts each: {total:.1f} s, {tree:.1f} s of it"
    print(f"{text} for the tree, {found.tree}; {memory:.1f} GB on {device}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--starts", type=int, default=10_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, nargs="*")
    options = parser.parse_args()
    if options.run is None:
        merging()
    else:
        tracking(options.run, options.starts, options.device, options.epochs)


if __name__ == "__main__":
    main()
