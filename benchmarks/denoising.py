"""Quality and speed of denoising and imputation on binary-MNIST, compared to baselines and Gibbs sampling.

python benchmarks/denoising.py FOLDER MACHINE.safetensors … [--images 1000] [--gibbs 2000] [--out FOLDER]

FOLDER contains MNIST's *-images-idx3-ubyte.gz. The script writes denoising.csv, imputation.csv and figures to the
folder --out.
"""

import argparse
import csv
import time
from pathlib import Path

import torch
from quality import images
from sklearn import metrics
from torch import Tensor

from tapmachine import Binary, BinarySymmetric, Missing, denoise, load
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_strips
from tapmachine.posterior import PosteriorOptions, gibbs_posterior
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate

NOISE = tuple(round(0.05 * step, 2) for step in range(11))


class Table:
    """Rows of a CSV file, which are also printed when added."""

    def __init__(self, path: Path | None) -> None:
        self.rows: list[dict] = []
        self.path = path

    def add(self, **row) -> None:
        self.rows.append(row)
        print(
            ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()),
            flush=True,
        )
        if self.path is not None:
            with self.path.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.rows[0])
                writer.writeheader()
                writer.writerows(self.rows)


def timed(function, *arguments, **options):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function(*arguments, **options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def flips(table: Table, machines: dict, train: Tensor, x: Tensor, noise, n_gibbs: int) -> dict[str, list[Tensor]]:
    """Compute the MCC at every p for the pointwise estimate, 1-NN, and machines from one start and from several."""
    prior = Binary(x.shape[1]).to(x.device).fit_to(train)
    kept: dict[str, list[Tensor]] = {}
    for p in noise:
        channel = BinarySymmetric(p)
        y = channel.corrupt(x)
        own = pointwise_estimate(prior, y, channel).mean
        example = train[nearest_neighbors(train, y)[:, 0]]
        found = {"noisy": y, "OPE": own, "1-NN": example}
        for name in ("OPE", "1-NN"):
            table.add(
                p=p,
                method=name,
                machine="",
                mcc=mcc(x, found[name]),
                log_loss=log_loss(x, found[name]),
                seconds=0.0,
            )
        for name, machine in machines.items():
            ways = {
                "paper": {"starts": [own]},
                "one example": {"starts": [example], "tol": 1e-6},
                "several starts": {},
                "with examples": {"data": train},
            }
            for way, options in ways.items():
                posterior, seconds = timed(denoise, machine, y, channel, **options)
                table.add(
                    p=p,
                    method=way,
                    machine=name,
                    mcc=mcc(x, posterior.mean),
                    log_loss=log_loss(x, posterior.mean),
                    seconds=seconds,
                )
                found[f"{name}, {way}"] = posterior.mean
            if n_gibbs:
                sampled, seconds = timed(gibbs_posterior, machine, y, channel, n_gibbs)
                table.add(
                    p=p,
                    method=f"Gibbs {n_gibbs}",
                    machine=name,
                    mcc=mcc(x, sampled.mean),
                    log_loss=log_loss(x, sampled.mean),
                    seconds=seconds,
                )
        for name, estimate in found.items():
            kept.setdefault(name, []).append(estimate[0].cpu())
    return kept


def gaps(table: Table, machines: dict, train: Tensor, x: Tensor) -> None:
    """Impute the missing half of the pixels of each image.

    Tuning parameters are selected on 1,000 other images: k, the temperature, and a factor that calibrates log-odds.
    """
    others, examples = train[:1000], train[1000:]
    half = torch.arange(x.shape[1], device=x.device) >= x.shape[1] // 2
    random = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device) < 0.5
    for kind, mask in (("random half", random), ("lower half", half)):
        channel = Missing(mask if mask.dim() == 1 else mask[: len(x)])
        estimates = []
        for rows in (others[: len(x)], x):
            y = channel.corrupt(rows)
            hidden = torch.isnan(y)
            found = families(machines, examples, y)
            estimates.append({name: [z[hidden] for z in own] for name, own in found.items()} | {"": [rows[hidden]]})
        known, new = estimates
        (truth_before,), (truth,) = known.pop(""), new.pop("")
        for name, own in known.items():
            by_mcc = max(range(len(own)), key=lambda number: mcc(truth_before, own[number]))
            by_loss = min(range(len(own)), key=lambda number: log_loss(truth_before, own[number]))
            factor = calibrated(truth_before, own[by_loss])
            estimate = new[name][by_loss]
            table.add(
                missing=kind,
                method=name,
                mcc=mcc(truth, new[name][by_mcc]),
                log_loss=log_loss(truth, estimate),
                calibrated=log_loss(truth, torch.sigmoid(factor * torch.logit(estimate, 1e-4))),
                chosen=f"{by_mcc} {by_loss}",
            )


def families(machines: dict, examples: Tensor, y: Tensor) -> dict[str, list[Tensor]]:
    """Return the estimates of each method for each of its settings."""
    prior = Binary(y.shape[1]).to(y.device).fit_to(examples)
    near = nearest_neighbors(examples, y, 50)
    found = {
        "OPE": [pointwise_estimate(prior, y, Missing()).mean],
        "k-NN": [smoothed(examples, near[:, :k]) for k in (1, 3, 5, 10, 20, 30, 50)],
    }
    for name, machine in machines.items():
        found[f"{name}, no examples"] = [denoise(machine, y, Missing()).mean]
        found[f"{name}, 3 examples"] = [denoise(machine, y, Missing(), data=examples).mean]
        found[f"{name}, 20 examples, T"] = [
            denoise(machine, y, Missing(), data=examples, options=PosteriorOptions(n_neighbors=20, temperature=t)).mean
            for t in (1, 2, 4, 8)
        ]
    return found


def mcc(truth: Tensor, estimate: Tensor) -> float:
    """Return the Matthews correlation coefficient of binary values and estimates, which are rounded."""
    return float(metrics.matthews_corrcoef(*((values > 0.5).flatten().cpu() for values in (truth, estimate))))


def log_loss(truth: Tensor, estimate: Tensor) -> float:
    """Return the mean log loss, in nats, of estimated means of binary values."""
    return float(metrics.log_loss(truth.flatten().cpu(), estimate.double().clamp(1e-4, 1 - 1e-4).flatten().cpu()))


def calibrated(truth: Tensor, estimate: Tensor) -> float:
    """Return the factor of the log-odds that minimizes the log-loss."""
    odds = torch.logit(estimate, 1e-4)
    factors = [0.02 * step for step in range(15, 76)]
    return min(factors, key=lambda factor: log_loss(truth, torch.sigmoid(factor * odds)))


def smoothed(examples: Tensor, numbers: Tensor) -> Tensor:
    """Return the fraction of examples with value 1, with half a pseudo-count for each value."""
    return (examples[numbers].sum(1) + 0.5) / (numbers.shape[1] + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("machines", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--gibbs", type=int, default=0, help="number of Gibbs sweeps (default: 0, no sampling)")
    parser.add_argument("--noise", type=float, nargs="*", default=NOISE)
    parser.add_argument("--gaps", action="store_true", help="run imputation only")
    parser.add_argument("--speed", type=int, default=0, help="number of images to denoise for timing only")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = (x.to(device) for x in images(options.folder, "binary-MNIST"))
    machines = {path.stem: load(path, device=device) for path in options.machines}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    if options.speed:
        for name, machine in machines.items():
            for p in (0.1, 0.3):
                y = BinarySymmetric(p).corrupt(test[: options.speed])
                own = pointwise_estimate(machine.layers[0], y, BinarySymmetric(p))
                for way, others in (("one start", {"starts": [own]}), ("several", {}), ("examples", {"data": train})):
                    posterior, seconds = timed(denoise, machine, y, BinarySymmetric(p), **others)
                    print(
                        f"{name}, p = {p}, {len(y)} images, {way}: {seconds:.2f} s on {device}; {posterior}", flush=True
                    )
        return
    x = test[: options.images]
    table = Table(options.out and options.out / "denoising.csv")
    kept = flips(table, machines, train, x, () if options.gaps else options.noise, options.gibbs)
    gaps(Table(options.out and options.out / "imputation.csv"), machines, train, x)
    if options.out and not options.gaps:
        figure = new_figure(7, 5)
        curves: dict[str, list[float]] = {}
        for row in table.rows:
            if row["method"] in ("OPE", "1-NN", "with examples", "paper"):
                label = f"{row['machine']}, {row['method']}" if row["machine"] else row["method"]
                curves.setdefault(label, []).append(row["mcc"])
        ax = figure.subplots()
        for label, values in curves.items():
            ax.plot(options.noise, values, "o-", label=label)
        ax.set(xlabel="noise", ylabel="MCC")
        ax.legend()
        figure.savefig(options.out / "denoising.png", dpi=100)
        figure = new_figure(9, 0.8 * len(kept))
        image_strips(figure.subplots(), {name: torch.stack(z) for name, z in kept.items()}, (28, 28))
        figure.savefig(options.out / "denoising_images.png", dpi=100)


if __name__ == "__main__":
    main()
