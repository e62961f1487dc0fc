"""Scaling of time and memory with the size of the problem.

The script measures the time of TAP training as a function of units, particles and rows, the time of a landscape as a
function of the number of starts, and the peak memory of training.

    python benchmarks/growth.py [--device cuda] [--quick]

Slopes are those of straight lines fitted to the logarithms of size and time; a slope of 1 means proportional growth.
The sizes alternate, and the shortest time of each is used, since the speed of a shared machine varies over time. The
targets are slopes of at most 1.05 in rows, particles and starts, and a peak memory of at most data + 12 × parameters +
particles, in addition to the memory of an interpreter that has trained a tiny machine.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from timing import seconds
from torch import Tensor

from tapmachine import TAP, Binary, TAPObjective, find_solutions, fit, rbm
from tapmachine.machine import BoltzmannMachine
from tapmachine.training import Monitor, momentum_sgd
from tapmachine.training.captured import CapturedStep
from tapmachine.training.trainer import Trainer

N_VISIBLE, N_HIDDEN, N_ROWS, BATCH, N_SWEEPS = 784, 500, 500, 100, 10
STEEPEST = 1.05  # slope in rows, particles and starts
COPIES = 12  # memory of training as a multiple of the parameters
SIZES = {
    "rows": (500, 1000, 2000, 4000, 8000),
    "particles": (50, 100, 200, 400, 800),
    "visible units": (196, 392, 784, 1568, 3136),
    "hidden units": (125, 250, 500, 1000, 2000),
    "starts": (250, 500, 1000, 2000, 4000),
}
QUICK_SIZES = {
    "rows": (500, 1000, 2000),
    "particles": (100, 200, 400),
    "visible units": (392, 784, 1568),
    "hidden units": (250, 500, 1000),
    "starts": (250, 500, 1000),
}
MEMORY_SIZES = ((60_000, 784, 500, 100), (60_000, 784, 500, 1000), (10_000, 784, 4000, 100), (10_000, 3136, 2000, 1000))
QUICK_MEMORY_SIZES = ((20_000, 784, 500, 100), (2000, 784, 2000, 100))


def clustered_rows(n_rows: int, n_visible: int, seed: int = 0) -> Tensor:
    """Return rows near one of 50 random patterns, with a tenth of the units flipped."""
    generator = torch.Generator().manual_seed(seed)
    patterns = (torch.rand(50, n_visible, generator=generator) < 0.2).float()
    rows = patterns[torch.randint(50, (n_rows,), generator=generator)]
    for part in rows.split(1000):  # in parts, to avoid a peak in memory
        part.sub_((torch.rand(part.shape, generator=generator) < 0.1).float()).abs_()
    return rows


def make_trainer(n_rows: int, n_visible: int, n_hidden: int, n_particles: int, device: str) -> Trainer:
    generator = torch.Generator().manual_seed(0)
    weights = 0.05 * torch.randn(n_visible, n_hidden, generator=generator)
    machine = rbm(Binary(n_visible), Binary(n_hidden), weights).to(device)
    x = clustered_rows(n_rows, n_visible).to(device)
    objective = TAPObjective(n_particles=n_particles, n_sweeps=N_SWEEPS)
    settings = {"epochs": 1000, "batch_size": BATCH, "monitor": Monitor(n_starts=0, every=10_000), "centered": False}
    return Trainer(machine, x, objective=objective, optimizer=momentum_sgd(machine), compile=False, **settings)


def epochs_to_time(question: str, sizes: tuple[int, ...], device: str) -> dict[int, Callable[[], object]]:
    """Return a function that trains for one epoch, for each size of one quantity and default sizes of all others."""
    calls = {}
    for size in sizes:
        usual = {"rows": N_ROWS, "visible units": N_VISIBLE, "hidden units": N_HIDDEN, "particles": BATCH}
        trainer = make_trainer(*(usual | {question: size}).values(), device=device)
        trainer.epoch()  # the first epoch warms up, and is the only one with measurements
        calls[size] = trainer.epoch
    return calls


def trained_machine(device: str) -> BoltzmannMachine:
    """Return a machine trained on the clusters until its landscape has many solutions."""
    machine = rbm(Binary(N_VISIBLE), Binary(100)).to(device)
    fit(machine, clustered_rows(5000, N_VISIBLE).to(device), epochs=10, monitor=Monitor(n_starts=0))
    return machine


def landscapes_to_time(sizes: tuple[int, ...], device: str) -> dict[int, Callable[[], object]]:
    machine = trained_machine(device)
    x = clustered_rows(max(sizes), N_VISIBLE, seed=1).to(device)
    find_solutions(machine, x[: sizes[0]])
    return {size: lambda size=size: find_solutions(machine, x[:size]) for size in sizes}


def in_turns(calls: dict[int, Callable[[], object]], repeats: int, device: str) -> dict[int, float]:
    """Return the shortest time of each call."""
    taken: dict[int, list[float]] = {size: [] for size in calls}
    for _ in range(repeats):
        for size, call in calls.items():
            taken[size].append(seconds(call, device))
    return {size: min(own) for size, own in taken.items()}


def slope(times: dict[int, float]) -> float:
    """Return the slope of the least-squares line of ln(time) over ln(size)."""
    at = torch.tensor([math.log(size) for size in times], dtype=torch.float64)
    value = torch.tensor([math.log(own) for own in times.values()], dtype=torch.float64)
    return float(((at - at.mean()) * value).sum() / (at - at.mean()).square().sum())


def resident(peak: bool = False) -> int:
    """Return the current or the peak memory of this process in bytes."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def measure_memory(n_rows: int, n_visible: int, n_hidden: int, n_particles: int, device: str) -> None:
    """Train in the current process, which must be new, and print the memory use as JSON."""
    imported = resident()
    tiny = make_trainer(2 * BATCH, 8, 4, BATCH, device)
    tiny.epoch()  # initializes threads and libraries
    baseline = resident()
    if device == "cuda":
        torch.cuda.synchronize()
        imported = baseline = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    trainer = make_trainer(n_rows, n_visible, n_hidden, n_particles, device)
    places = islice(trainer.batches.epoch(), 20)  # more steps do not use more memory
    captured = CapturedStep(trainer.step, trainer.batches, next(places)) if trainer.captures else None
    for place in places:
        captured(place) if captured else trainer.step(*trainer.batches.take(place))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident(peak=True)
    machine = trainer.machine
    n_parameters = sum(p.numel() for p in machine.parameters())
    per_particle = TAP().bind(machine).values_per_particle()
    found = {"imported": imported, "baseline": baseline, "peak": peak, "data": 4 * n_rows * n_visible}
    print(json.dumps(found | {"parameters": 4 * n_parameters, "particles": 4 * n_particles * per_particle}))


def memory_of(size: tuple[int, int, int, int], device: str, **environment: str) -> dict[str, float]:
    """Return the results of `measure_memory` in a separate process, in MiB."""
    words = [sys.executable, __file__, "--device", device, "--memory", *map(str, size)]
    answer = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | environment).stdout
    return {name: value / 2**20 for name, value in json.loads(answer.splitlines()[-1]).items()}


def memory_table(sizes: tuple[tuple[int, int, int, int], ...], device: str) -> None:
    print(
        "\n| rows | machine | particles | data | parameters | particles memory | target | peak | without reserve "
        "| beyond importing | met |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in sizes:
        found, bare = memory_of(size, device), memory_of(size, device, MALLOC_MMAP_THRESHOLD_="65536")
        bar = found["data"] + COPIES * found["parameters"] + found["particles"]
        peak, whole = found["peak"] - found["baseline"], found["peak"] - found["imported"]
        n_rows, n_visible, n_hidden, n_particles = size
        cells = [n_rows, f"{n_visible}×{n_hidden}", n_particles]
        cells += [f"{found[name]:.1f}" for name in ("data", "parameters", "particles")]
        needed = bare["peak"] - bare["baseline"]
        cells += [f"{value:.1f}" for value in (bar, peak, needed, whole)] + ["yes" if peak <= bar else "no"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print("\nIn MiB. The target is data + 12 × parameters + particles, as estimated by the solver.")
    print("The peak is for creating a trainer and 20 steps, in addition to training a tiny machine. Without reserve:")
    print("glibc returns freed memory immediately (MALLOC_MMAP_THRESHOLD_=65536), which is slower.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller sizes (two minutes on two cores)")
    parser.add_argument("--memory", type=int, nargs=4, help=argparse.SUPPRESS)  # internal, for the separate process
    options = parser.parse_args()
    device = options.device
    if options.memory:
        measure_memory(*options.memory, device=device)
        return
    sizes, repeats = (QUICK_SIZES, 2) if options.quick else (SIZES, 3)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"TAP training of {N_SWEEPS} sweeps, batches of {BATCH}, by default {N_ROWS} rows, {N_VISIBLE}×{N_HIDDEN}")
    print(f"and {BATCH} particles; landscapes of {N_VISIBLE}×100; seconds on {where}\n")
    print("| quantity | seconds at each size | slope | target | met |\n| --- | --- | --- | --- | --- |")
    for question, own_sizes in sizes.items():
        if question == "starts":
            times = in_turns(landscapes_to_time(own_sizes, device), 2, device)
        else:
            times = in_turns(epochs_to_time(question, own_sizes, device), repeats, device)
        found, has_bar = slope(times), "units" not in question
        cells = ", ".join(f"{size}: {own:.3f}" for size, own in times.items())
        verdict = f"{STEEPEST} | {'yes' if found <= STEEPEST else 'no'}" if has_bar else "– | –"
        print(f"| {question} | {cells} | {found:.2f} | {verdict} |", flush=True)
    memory_table(QUICK_MEMORY_SIZES if options.quick else MEMORY_SIZES, device)


if __name__ == "__main__":
    main()
