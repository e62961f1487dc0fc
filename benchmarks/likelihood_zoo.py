"""Annealed log-likelihoods of 60 machines whose ln Z is also known exactly, with many ways to be wrong.

    python benchmarks/likelihood_zoo.py [--only NAME] [--seed 0]

Twenty machines of all unit types are trained on data with clusters, holes and other structure, and scored with their
weights multiplied by 1, 2 and 4 (by 1, 1.2 and 1.5 for counts). The exact value of ln Z, by enumeration, is hidden from
the estimator. For each machine, the error of the mean log-likelihood is printed with the claimed error and the warning,
if any.
"""

import argparse
import copy
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from tapmachine import (
    Binary,
    Categorical,
    Gaussian,
    Mixed,
    Poisson,
    Spin,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    Units,
    dbm,
    exact_log_partition,
    fit,
    pairwise,
    pretrain,
    rbm,
)
from tapmachine.likelihood.unbiased import THOROUGH, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine

Zoo = dict[str, tuple[BoltzmannMachine, Tensor, tuple[float, ...]]]
SCALES = (1.0, 2.0, 4.0)
NO_ENUMERATION = THOROUGH._replace(bits=1)
N_ROWS = 1000  # rows passed to the estimator, as by `RBM.score`


def clusters(n: int, shape: tuple[int, ...], n_states: int = 2, flip: float = 0.02, seed: int = 0) -> np.ndarray:
    """States around four random centers with shares 0.5, 0.3, 0.15 and 0.05."""
    random = np.random.default_rng(seed)
    centers = random.integers(0, n_states, (4, *shape))
    x = centers[random.choice(4, n, p=(0.5, 0.3, 0.15, 0.05))]
    return np.where(random.random(x.shape) < flip, random.integers(0, n_states, x.shape), x).astype(float)


def hole(n: int, columns: int, share: float) -> np.ndarray:
    """Noise, in which a share of the rows is one pattern."""
    random = np.random.default_rng(0)
    x = (random.random((n, columns)) < 0.5).astype(float)
    x[random.random(n) < share] = random.random(columns) < 0.5
    return x


def survey(n: int) -> np.ndarray:
    """One-hot answers to eight questions by three kinds of people."""
    random = np.random.default_rng(0)
    answers = random.integers(0, 4, (3, 8))[random.integers(0, 3, n)]
    answers = np.where(random.random(answers.shape) < 0.1, random.integers(0, 4, answers.shape), answers)
    return np.eye(4)[answers].reshape(n, 32)


def blobs(n: int, columns: int) -> np.ndarray:
    random = np.random.default_rng(0)
    centers = 3 * random.normal(size=(4, columns))
    return centers[random.choice(4, n, p=(0.5, 0.3, 0.15, 0.05))] + random.normal(size=(n, columns))


def trained(visible: Callable[[int], Units], x: np.ndarray, n_hidden: int = 12, **options: int) -> tuple:
    rows = torch.from_numpy(x)
    machine = rbm(visible(x.shape[1]).double(), Binary(n_hidden).double())
    fit(machine, rows, **{"epochs": 30} | options)
    return machine, rows, SCALES


def deep(x: np.ndarray, *sizes: int) -> tuple:
    rows = torch.from_numpy(x)
    machine = dbm([Binary(x.shape[1]).double(), *(Binary(n).double() for n in sizes)])
    pretrain(machine, rows, epochs=10)
    fit(machine, rows, epochs=20)
    return machine, rows, SCALES


def coupled(units: Units, x: np.ndarray) -> tuple:
    rows = torch.from_numpy(x)
    machine = pairwise(units.double())
    fit(machine, rows, epochs=30)
    return machine, rows, SCALES


def mixed(n: int) -> tuple:
    random = np.random.default_rng(0)
    kind = random.choice(3, n, p=(0.6, 0.3, 0.1))
    real = 2.0 * random.normal(size=(3, 4))[kind] + random.normal(size=(n, 4))
    bits = (random.random((n, 6)) < random.random((3, 6))[kind]).astype(float)
    answers = np.eye(3)[(kind[:, None] + (random.random((n, 2)) < 0.2)) % 3].reshape(n, 6)
    machine = rbm(Mixed([Gaussian(4), Binary(6), Categorical(2, 3)]).double(), Binary(10).double())
    rows = torch.from_numpy(np.hstack((real, bits, answers)))
    fit(machine, rows, epochs=30)
    return machine, rows, SCALES


def zoo() -> dict[str, Callable[[], tuple]]:
    digits = load_digits().data
    black = (digits > 8).astype(float)
    counts = np.random.default_rng(1).poisson(0.5 + 3 * clusters(1000, (12,)))
    return {
        "4 clusters, 2 %": lambda: trained(Binary, clusters(4000, (60,)), 16),
        "4 clusters, 5 %": lambda: trained(Binary, clusters(4000, (60,), flip=0.05), 16),
        "4 clusters, seed 1": lambda: trained(Binary, clusters(4000, (60,), seed=1), 16),
        "hole 10 %": lambda: trained(Binary, hole(4000, 60, 0.1), 16),
        "hole 50 %": lambda: trained(Binary, hole(4000, 60, 0.5), 16),
        "digits": lambda: trained(Binary, black, 16, epochs=100),
        "overfitted digits": lambda: trained(Binary, black[:50], 16, epochs=1000),
        "one-hot survey": lambda: trained(Binary, survey(1000)),
        "clusters of spins": lambda: trained(Spin, 2 * clusters(2000, (40,)) - 1),
        "spins, TAP": lambda: coupled(Spin(18), 2 * clusters(1000, (18,), flip=0.1) - 1),
        "pairwise bits": lambda: coupled(Binary(18), clusters(1000, (18,), flip=0.1)),
        "sequences": lambda: trained(
            lambda n: Categorical(n, 4), clusters(1000, (20,), n_states=4, flip=0.1).astype(int)
        ),
        "gray digits": lambda: trained(lambda n: TruncatedGaussian(n), digits / 16),
        "sparse digits": lambda: trained(lambda n: TruncatedGaussBernoulli(n), digits / 16),
        "blobs": lambda: trained(Gaussian, blobs(2000, 10)),
        "counts": lambda: (*trained(Poisson, counts.astype(float))[:2], (1.0, 1.2, 1.5)),
        "mixed table": lambda: mixed(1000),
        "deep digits": lambda: deep(black, 12, 8),
        "deep clusters": lambda: deep(clusters(2000, (40,)), 12, 10),
        "deep hole": lambda: deep(hole(2000, 40, 0.3), 12, 10),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="words in the names of machines, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name, build in zoo().items():
        if not any(word in name for word in options.only.split(",")):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine, rows, scales = build()
        for scale in scales:
            scaled = copy.deepcopy(machine)
            with torch.no_grad():
                for weights in scaled.weights:
                    weights.mul_(scale)
            exact, start = float(exact_log_partition(scaled)), time.perf_counter()
            data = rows[:N_ROWS].float() if rows.is_floating_point() else rows[:N_ROWS]
            found = unbiased_log_partition(scaled.float(), data, NO_ENUMERATION, options.seed)
            off, taken = exact - found.value, time.perf_counter() - start  # of the log-likelihood
            results.append((abs(off), found.error, bool(found.problem)))
            print(
                f"{name:20} x{scale:<3g} ln Z {exact:10.3f}  score {off:+8.3f} ± {found.error:.3f} {taken:5.1f} s",
                end=" ",
            )
            print(found.problem, flush=True)
    off, error, warned = (np.array(column) for column in zip(*results, strict=True))
    within = off <= np.maximum(3 * error, 1e-6)
    print(f"{len(off)} machines: within 3 errors {within.mean():.1%}, within 0.15 nats {(off <= 0.15).mean():.1%}")
    print(f"more than 0.5 nats off without a warning: {int(((off > 0.5) & ~warned).sum())}")


if __name__ == "__main__":
    main()
