"""Time of annealed importance sampling, relative to its matrix products alone and to `rbms`, if installed.

    python benchmarks/annealing.py [--device cuda] [--hidden 500] [--temperatures 300]

All measurements alternate within one process, since the speed of a shared machine varies over time.
"""

import argparse
import statistics

import torch
from timing import seconds

from tapmachine import Binary, ais_log_partition, rbm
from tapmachine.likelihood.annealing.bases import independent_base
from tapmachine.likelihood.annealing.paths import path_from, seeded
from tapmachine.likelihood.annealing.runs import anneal

N_VISIBLE, N_RUNS, REPEATS = 784, 100, 7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--temperatures", type=int, default=300)
    options = parser.parse_args()
    device, n_hidden, n_temperatures = options.device, options.hidden, options.temperatures

    torch.manual_seed(0)
    W, b, c = 0.05 * torch.randn(N_VISIBLE, n_hidden), torch.randn(N_VISIBLE), torch.randn(n_hidden)
    machine = rbm(Binary(N_VISIBLE, field=b), Binary(n_hidden, field=c), W).to(device)
    x, h, W = (z.to(device) for z in (torch.rand(N_RUNS, N_VISIBLE), torch.rand(N_RUNS, n_hidden), W))
    path = path_from(independent_base(machine), machine)
    betas = torch.linspace(0, 1, n_temperatures + 1, dtype=torch.float64)

    def products() -> None:
        for _ in range(n_temperatures):
            x @ W
            h @ W.T

    def ours() -> None:
        generator = seeded(machine.device, 0, "benchmark")
        anneal(path, betas, path.draw(N_RUNS, generator), generator)

    contenders = {"products": products, "tapmachine": ours}
    try:
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.partition_function.ais import compute_partition_function_ais

        peer = BBRBM(weight_matrix=W, vbias=b.to(device), hbias=c.to(device))
        contenders["rbms"] = lambda: compute_partition_function_ais(N_RUNS, n_temperatures + 1, peer)
    except ImportError:
        print("rbms is not installed; comparison skipped")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS + 1):
        for name, call in contenders.items():
            taken = seconds(call, device)
            if repeat:  # the first round warms up
                times[name].append(taken)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{N_VISIBLE}x{n_hidden}, {N_RUNS} runs, {n_temperatures} temperatures, {where}; time per temperature:")
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times["tapmachine"], strict=True))
        print(f"{name:<12} {1e3 * statistics.median(taken) / n_temperatures:8.3f} ms each, {ratio:6.2f} x tapmachine")
    if device == "cuda":
        schedule = torch.linspace(0, 1, 14_501, dtype=torch.float64)  # as many temperatures as in the paper
        whole = [
            seconds(lambda seed=seed: ais_log_partition(machine, schedule, seed=seed), device) for seed in range(4)
        ]
        print(f"{len(schedule) - 1} temperatures x {N_RUNS} runs, total time: {statistics.median(whole[1:]):.2f} s")


if __name__ == "__main__":
    main()
