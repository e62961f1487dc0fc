"""AIS log-likelihood of held-out rows for the runs of docs/benchmarks/quality.md, on the paper's data.

python benchmarks/quality.py FOLDER RUN [--seed 0] [--epochs N] [--out FOLDER]

FOLDER contains MNIST's *-images-idx3-ubyte.gz and cbcl_faces.npz. RUN is one of the names in RUNS.
"""

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tapmachine import (
    CD,
    PCD,
    Binary,
    TAPObjective,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    ais_log_likelihood,
    ais_log_partition,
    fit,
    rbm,
)
from tapmachine.display.charts import training_curves
from tapmachine.display.images import image_grid
from tapmachine.training import History, Monitor, Objective, geometric_decay, momentum_sgd


@dataclass(frozen=True)
class Run:
    """Settings of a run; by default those of the paper's Table I."""

    data: str
    n_hidden: int
    epochs: int
    objective: Objective | None  # None for the default
    learning_rate: float | None = 0.005  # None for the default optimizer
    decay: float = 1.0
    weight_decay: float = 0.001
    batch_size: int = 100
    centered: bool = False


def preset(objective: Objective, centered: bool = True) -> Run:
    return Run("binary-MNIST", 500, 50, objective, 0.02, 0.01, 0.0, centered=centered)


RUNS = {
    **{
        f"{name}-{n_hidden}": Run("binary-MNIST", n_hidden, epochs, objective)
        for n_hidden, epochs in ((25, 50), (100, 100))
        for name, objective in (
            ("tap", TAPObjective(merged=False)),
            ("cd1", CD(1)),
            ("pcd1", PCD(1)),
            ("pcd10", PCD(10)),
        )
    },
    "tap-500": Run("binary-MNIST", 500, 30, TAPObjective(n_sweeps=30, merged=False)),
    "default-100": Run("binary-MNIST", 100, 100, None),
    "default-500": Run("binary-MNIST", 500, 50, None),
    "default-real-mnist-100": Run("real-MNIST", 100, 50, None),
    "default-cbcl-256": Run("CBCL", 256, 100, None),
    "tap-merged-500": Run("binary-MNIST", 500, 50, TAPObjective(), None),
    **{
        f"{name}-{data.lower()}-{n_hidden}": Run(data, n_hidden, epochs, objective, None)
        for data, n_hidden, epochs in (("real-MNIST", 100, 50), ("CBCL", 256, 100))
        for name, objective in (("tap", TAPObjective()), ("pcd10", PCD(10)))
    },
    "pcd10-500": preset(PCD(10, 500)),
    "pcd10-uncentered-500": preset(PCD(10, 500), centered=False),
    "real-mnist-100": Run("real-MNIST", 100, 100, TAPObjective(merged=False), 1e-2, 1e-3),
    "real-mnist-500": Run("real-MNIST", 500, 100, TAPObjective(merged=False), 1e-2, 1e-3),
    "cbcl-256": Run("CBCL", 256, 100, TAPObjective(merged=False), weight_decay=0.01, batch_size=20),
}


def images(folder: Path, data: str) -> tuple[Tensor, Tensor]:
    """Return training rows and held-out rows, with values in [0, 1]."""
    if data == "CBCL":
        with np.load(folder / "cbcl_faces.npz") as file:
            return tuple(torch.from_numpy(file[name].reshape(-1, 361)).float() / 255 for name in ("train", "test"))
    rows = []
    for name in ("train", "t10k"):
        raw = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
        rows.append(torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784).copy()).float() / 255)
    return tuple((x > 0.5).float() if data == "binary-MNIST" else x for x in rows)


def picture(weights: Tensor, history: History, side: int, path: Path) -> None:
    """Plot the receptive fields, from the largest to the smallest, and the TAP log-likelihood during training."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    largest = weights.norm(dim=0).argsort(descending=True)
    some = largest[torch.linspace(0, len(largest) - 1, 49).long()]
    image_grid(axes[0], weights.T[some], (side, side))
    training_curves(axes[1], history.records)
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="number of epochs (default: that of the run)")
    parser.add_argument("--out", type=Path, help="folder for records and parameters")
    parser.add_argument(
        "--every", type=int, help="number of epochs between measurements (default: 20 measurements in total)"
    )
    options = parser.parse_args()
    run = RUNS[options.run]
    epochs = options.epochs or run.epochs
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = (x.to(device) for x in images(options.folder, run.data))
    units = {"binary-MNIST": Binary, "real-MNIST": TruncatedGaussBernoulli, "CBCL": TruncatedGaussian}[run.data]
    generator = torch.Generator().manual_seed(options.seed)
    machine = rbm(units(train.shape[1]), Binary(run.n_hidden), generator=generator).to(device)
    paper = {}
    if run.learning_rate is not None and run.objective is not None:
        optimizer = momentum_sgd(machine, run.learning_rate, weight_decay=run.weight_decay)
        schedule = geometric_decay(optimizer, run.decay, epochs)
        paper = {"optimizer": optimizer, "scheduler": schedule, "centered": run.centered, "batch_size": run.batch_size}
    start = time.perf_counter()
    history = fit(
        machine,
        train,
        epochs=epochs,
        objective=run.objective,
        validation=test,
        early_stopping=False,
        seed=options.seed,
        monitor=Monitor(max_sweeps=200, every=options.every),
        progress=True,
        **paper,
    )
    print(f"{options.run}: {len(history)} epochs in {time.perf_counter() - start:.0f} s, measurements included")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.run}.json").write_text(json.dumps(history.records))
        parameters = {name: value.cpu().numpy() for name, value in machine.state_dict().items()}
        np.savez_compressed(options.out / f"{options.run}.npz", **parameters)
        picture(machine.weights[0].detach(), history, int(train.shape[1] ** 0.5), options.out / f"{options.run}.png")
    estimate = ais_log_partition(machine, 4000 if units is Binary else 1000, 200, data=train)
    print(f"{options.run}: AIS, test {ais_log_likelihood(machine, test, estimate)}")


if __name__ == "__main__":
    main()
