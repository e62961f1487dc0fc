"""Training by TAP and by adaptive TAP, and the cost of a sweep of each [fig:adatap].

python benchmarks/adaptive.py FOLDER [--seconds 60] [--out FOLDER]

Machines of 784×500 units are trained on the first 5,000 binary-MNIST images with learning rate 0.001, batches of 100
and damping 0.5. Each run ends after the given number of seconds. FOLDER contains MNIST's *-images-idx3-ubyte.gz.
"""

import argparse
import csv
import time
import timeit
from pathlib import Path
from statistics import median

import torch
from quality import images

from tapmachine import (
    TAP,
    AdaptiveTAP,
    BeliefPropagation,
    Binary,
    RelaxedBP,
    TAPObjective,
    pseudo_log_likelihood,
    rbm,
    solve,
)
from tapmachine.solver.schemes.adaptive_tap.gaussian_side import Bipartite
from tapmachine.training import Monitor, Trainer, momentum_sgd

SCHEMES = {"TAP": TAP("explicit", 0.5), "adaTAP": AdaptiveTAP(0.5)}


def training(x, name: str, n_sweeps: int, seconds: float, epochs: int) -> list[dict]:
    machine = rbm(Binary(784), Binary(500), generator=torch.Generator().manual_seed(0)).to(x.device)
    trainer = Trainer(
        machine,
        x,
        epochs=epochs,
        batch_size=100,
        objective=TAPObjective(n_sweeps=n_sweeps, scheme=SCHEMES[name], merged=False),
        optimizer=momentum_sgd(machine, 0.001, weight_decay=0.001),
        seed=0,
        monitor=Monitor(n_starts=0),
    )
    rows, begun, spent = [], time.perf_counter(), 0.0
    while spent < seconds and trainer.finished < epochs:
        trainer.epoch()
        spent = time.perf_counter() - begun
        value = float(pseudo_log_likelihood(machine, x[:500], n_visible=100).mean)
        rows.append({"scheme": name, "sweeps": n_sweeps, "epoch": trainer.finished, "pseudo": value, "seconds": spent})
    last = rows[-1]
    print(
        f"{name}, {n_sweeps} sweeps: epoch {last['epoch']}, pseudo-likelihood {last['pseudo']:.1f}, {spent:.1f} s",
        flush=True,
    )
    return rows


def _seconds_a_sweep(machine, x, scheme, few: int, many: int) -> float:
    """Time of a sweep, from the difference of two solves to exclude overheads; each time is the shortest of three."""
    seconds = []
    for n_sweeps in (few, many):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            found = solve(machine, x, scheme, tol=1e-30, max_sweeps=n_sweeps)
            made = int(found.n_sweeps.max())  # waits for the GPU
            times.append(time.perf_counter() - start)
        seconds.append((made, min(times)))
    assert seconds[1][0] > seconds[0][0], "all particles have converged; use fewer sweeps"
    return (seconds[1][1] - seconds[0][1]) / (seconds[1][0] - seconds[0][0])


def sweep_times(x, machine) -> None:
    for size in (10, 100, 1000):
        line = [f"{size} particles, 784×{machine.layers[1].n}:"]
        for scheme in (TAP(), AdaptiveTAP(), AdaptiveTAP(self_averaging=True), RelaxedBP(), BeliefPropagation()):
            if size == 1000 and not isinstance(scheme, TAP):
                continue
            few, many = (10, 40) if isinstance(scheme, RelaxedBP | BeliefPropagation) else (40, 400)
            each = _seconds_a_sweep(machine, x[:size], scheme, few, many)
            line.append(f"{scheme} {1e3 * each:.2f} ms")
        print(", ".join(line), flush=True)


def inverse_times(machine, n_particles: int) -> None:
    """Time of the Gaussian part of a sweep by the Schur complement, and by inverting the full matrix diag(1/v) − J."""
    weights, (n_v, n_h) = machine.weights[0].detach(), machine.sizes
    v = torch.full((n_particles, n_v + n_h), 0.1, device=weights.device)
    side = Bipartite(weights)
    couplings = torch.zeros(n_v + n_h, n_v + n_h, device=weights.device)
    couplings[:n_v, n_v:], couplings[n_v:, :n_v] = weights, weights.T

    def dense() -> torch.Tensor:
        inverse = torch.linalg.inv(torch.diag_embed(1 / v) - couplings)
        return ((couplings @ inverse) * couplings).sum(-1)

    torch.testing.assert_close(side.reaction(v), dense(), rtol=1e-3, atol=1e-3)
    works = (lambda: side.reaction(v).sum().item(), lambda: dense().sum().item())
    schur, whole = (1e3 * median(timeit.repeat(work, number=1, repeat=7)) for work in works)
    print(
        f"784×{n_h}, {n_particles} particles: Schur {schur:.1f} ms, dense {whole:.1f} ms, {whole / schur:.1f}×",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = images(options.folder, "binary-MNIST")[0][:5000].to(device)
    for n_hidden in (100, 500):
        generator = torch.Generator().manual_seed(0)
        weights = 0.1 * torch.randn(784, n_hidden, generator=generator)
        machine = rbm(Binary(784), Binary(n_hidden), weights=weights).to(device)
        inverse_times(machine, 20)
        sweep_times(x, machine)
    rows = []
    for name in SCHEMES:
        for n_sweeps in (3, 10, 100):
            rows += training(x, name, n_sweeps, options.seconds, options.epochs)
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                with (options.out / "adatap.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, rows[0])
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
