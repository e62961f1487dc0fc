"""Deep machines on binary-MNIST: log-likelihood during training, and a lower bound by AIS [fig:dbmtraining].

python benchmarks/deep.py FOLDER RUN [--epochs N] [--pretrain N] [--seed 0] [--out FOLDER]

FOLDER contains MNIST's *-images-idx3-ubyte.gz. RUN is one of the names in RUNS. The lower bound is −F by naive mean
field for the machine clamped to each test row, minus ln Z by AIS. Estimates by TAP and by AIS alone are also printed.
"""

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from quality import images

from tapmachine import (
    PCD,
    Binary,
    NaiveMeanField,
    TAPObjective,
    ais_log_likelihood,
    ais_log_partition,
    dbm,
    pretrain,
    save,
)
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.training import Monitor, Objective, Trainer, geometric_decay, momentum_sgd


@dataclass(frozen=True)
class Run:
    hidden: tuple[int, ...]
    pretrain: int
    epochs: int
    objective: str = "default"
    learning_rate: float | None = None  # constant; None for the default, which decays to a hundredth
    pretrain_rate: float | None = None
    naive: bool = False  # naive mean field in the data term
    doubled: bool = False


RUNS = {
    "single": Run((500,), 0, 50),
    "sm": Run((500, 1000), 10, 50),
    "joint-2": Run((500, 500), 0, 50),
    "pretrained-2": Run((500, 500), 10, 50),
    "doubled-2": Run((500, 500), 10, 50, doubled=True),
    "naive-2": Run((500, 500), 0, 50, naive=True),
    "joint-3": Run((500, 500, 500), 0, 50),
    "paper-2": Run((500, 500), 50, 100, "tap", 0.001, 0.001),
    "paper-3": Run((500, 500, 500), 50, 100, "tap", 0.001, 0.001),
}


def objective(run: Run) -> Objective:
    chosen = TAPObjective(merged=False) if run.objective == "tap" else PCD(2, 500)
    if run.naive:
        chosen.scheme = NaiveMeanField()
    return chosen


def train(run: Run, x: torch.Tensor, test: torch.Tensor, seed: int, every: int):
    machine = dbm([Binary(784), *map(Binary, run.hidden)], generator=torch.Generator().manual_seed(seed)).to(x.device)
    records: list[dict[str, float]] = []
    monitor = Monitor(max_sweeps=200, every=every)

    def constant(rate: float | None):
        return None if rate is None else lambda own: momentum_sgd(own, rate)

    if run.pretrain:
        rate = constant(run.pretrain_rate)
        options = {"doubled": run.doubled, "objective": lambda own: objective(run), "optimizer": rate}
        records += pretrain(machine, x, epochs=run.pretrain, seed=seed, monitor=monitor, **options).records
        print(f"pretrained in {sum(row['seconds'] for row in records):.0f} s", flush=True)
    make = constant(run.learning_rate)
    optimizer = make(machine) if make else None
    trainer = Trainer(
        machine,
        x,
        epochs=run.epochs,
        objective=objective(run),
        optimizer=optimizer,
        scheduler=None if optimizer is None else geometric_decay(optimizer, 1.0, run.epochs),
        validation=test,
        warm_start=run.pretrain > 0,
        seed=seed,
        monitor=monitor,
    )
    while trainer.finished < run.epochs:
        record = trainer.epoch()
        records.append(record | {"layer": 0.0, "epoch": record["epoch"] + run.pretrain * len(run.hidden)})
        if "log_likelihood" in record:
            names = (
                "log_likelihood",
                "validation_log_likelihood",
                "tap_log_likelihood",
                "tap_log_sum_exp",
                "seconds",
                "n_unique",
            )
            shown = "  ".join(f"{name} {record.get(name, float('nan')):.4g}" for name in names)
            varies = "  ".join(f"{value:.3f}" for name, value in record.items() if name.startswith("variation"))
            print(f"epoch {trainer.finished}  {shown}  varies {varies}", flush=True)
    return machine, records


@torch.no_grad()
def bound(machine, train: torch.Tensor, test: torch.Tensor) -> None:
    begun = time.perf_counter()
    estimate = ais_log_partition(machine, 10_000, 500, data=train, seed=0)
    print(f"ln Z by AIS {estimate}, {time.perf_counter() - begun:.0f} s", flush=True)
    double = machine.double()
    if len(machine.layers) == 2:
        print(f"AIS of {len(test)} rows: {ais_log_likelihood(machine.float(), test, estimate)}", flush=True)
        return
    ln_z = float(estimate.log_partition)
    test = test[:: max(1, len(test) // 1000)]
    for scheme in (NaiveMeanField(), None):
        weights = clamped_log_weight(double, test.double(), scheme or TAPObjective().scheme)
        name = "lower bound by naive mean field" if scheme else "by TAP"
        print(f"{name}: {float(weights.nanmean()) - ln_z:.2f} over {len(test)} rows", flush=True)
    machine.float()
    some = test[::2]
    print(
        f"AIS of {len(some)} rows: {ais_log_likelihood(machine, some, estimate, schedule=1000, n_runs=50)}", flush=True
    )
    print(f"{time.perf_counter() - begun:.0f} s in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--pretrain", type=int)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = RUNS[options.run]
    changes = {name: getattr(options, name) for name in ("epochs", "pretrain") if getattr(options, name) is not None}
    run = Run(**{**run.__dict__, **changes})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, test = (z.to(device) for z in images(options.folder, "binary-MNIST"))
    begun = time.perf_counter()
    machine, records = train(run, x, test, options.seed, options.every)
    print(f"{options.run}: trained in {time.perf_counter() - begun:.0f} s", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        save(machine, options.out / f"{options.run}.safetensors")
        names = list(dict.fromkeys(name for record in records for name in record))
        with (options.out / f"{options.run}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(records)
    bound(machine, x, test)


if __name__ == "__main__":
    main()
