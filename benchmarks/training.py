"""Time of a TAP training step relative to its sweeps alone; on a GPU, time of a whole epoch.

python benchmarks/training.py [--device cuda] [--tf32] [--hidden 500]
"""

import argparse
import statistics
import time

import torch

from tapmachine import TAP, Binary, TAPObjective, fit, rbm
from tapmachine.beliefs import Moments
from tapmachine.training import Monitor, TrainingOptions, momentum_sgd
from tapmachine.training.step import Step

N_VISIBLE, BATCH, N_SWEEPS, REPEATS = 784, 100, 10, 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--tf32", action="store_true", help="matrix products in TensorFloat32 on a GPU")
    options = parser.parse_args()
    device = options.device
    generator = torch.Generator().manual_seed(0)
    weights = 0.1 * torch.randn(N_VISIBLE, options.hidden, generator=generator)
    machine = rbm(Binary(N_VISIBLE, field=-1.0), Binary(options.hidden), weights).to(device)
    x = (torch.rand(60_000, N_VISIBLE, generator=generator) < 0.2).float().to(device)
    if device == "cuda":
        if options.tf32:
            torch.set_float32_matmul_precision("high")
        settings = {"epochs": 4, "objective": TAPObjective(), "monitor": Monitor(0), "compile": True}
        history = fit(machine, x, optimizer=momentum_sgd(machine), **settings)
        print(f"{N_VISIBLE}x{options.hidden}: {min(history['seconds'][1:]):.3f} s per epoch of 600 steps")
        return
    batch = x[:BATCH]
    options = TrainingOptions(objective=TAPObjective(), optimizer=momentum_sgd(machine, 0.0))
    step = Step(machine, x, BATCH, generator, options)
    process, layers = TAP().bind(machine), list(machine.layers)

    @torch.no_grad()
    def sweeps() -> None:
        state = process.begin(layers, [Moments(batch, torch.zeros_like(batch)), None])
        for _ in range(-(-(N_SWEEPS - 1) // process.sweeps_per_step)):
            state, _ = process.step(layers, state)

    def seconds(call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    times = [(seconds(sweeps), seconds(lambda: step(batch))) for _ in range(REPEATS)][3:]
    ratio = statistics.median(b / a for a, b in times)
    alone, whole = (1e3 * statistics.median(z) for z in zip(*times, strict=True))
    print(f"{N_VISIBLE}x{options.hidden}, {N_SWEEPS} sweeps: {alone:.1f} ms, step {whole:.1f} ms, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
