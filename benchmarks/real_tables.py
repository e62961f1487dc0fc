"""Held-out log-likelihoods of real-valued tables, in nats and in the units of the data, compared to simple models.

    python benchmarks/real_tables.py [--splits 5] [--first 0] [--only wine] [--out FILE.md]

Each table is split five times, with 80 % of the rows for training. Columns that are constant in the training rows are
excluded for all models. `RBM()` has its default settings. Times are for `fit` and `score` together.

The pixels of digits are integers from 0 to 16, for which a density can be arbitrarily high. The comparison therefore
uses the log-probability of the integers, which is the integral of the density over bins of width 1 around them. For all
models, it is bounded from below by the mean log-density of rows with uniform noise of the width of the bins (Jensen's
inequality). Gaussian models are also fitted to rows with noise; without it, their densities degenerate. `RBM()` selects
units with an atom at 0 for these data and is fitted to rows without noise. For this model, no noise is added to 0,
whose probability is nonzero, and the bin of 16 has width ½, since it ends at 16.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.covariance import EmpiricalCovariance
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split

from tapmachine import RBM

TABLES = {"wine": load_wine, "breast cancer": load_breast_cancer, "diabetes": load_diabetes, "digits": load_digits}
MODELS: dict[str, Callable[[], object]] = {
    "RBM()": RBM,
    'RBM(visible="gaussian")': lambda: RBM(visible="gaussian"),
    "RBM(n_hidden=5)": lambda: RBM(n_hidden=5, visible="gaussian"),
    "full Gaussian": EmpiricalCovariance,
    "GaussianMixture(1)": lambda: GaussianMixture(1),
    "FactorAnalysis(100)": lambda: FactorAnalysis(100),
    "FactorAnalysis(5)": lambda: FactorAnalysis(5),
    "GaussianMixture(3)": lambda: GaussianMixture(3, random_state=0),
}
WHOLE_NUMBERS = {"digits"}  # tables of integers, compared by log-probability
LARGEST = 16  # largest pixel value of digits


def splits(table: str, n_splits: int, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over the training and test rows of each split."""
    x = TABLES[table]().data
    for seed in range(first, first + n_splits):
        train, test = train_test_split(x, test_size=0.2, random_state=seed)
        varies = train.min(0) < train.max(0)
        yield train[:, varies], test[:, varies]


def with_noise(x: np.ndarray, seed: int) -> np.ndarray:
    """Add uniform noise from −½ to ½ to integers."""
    return x + np.random.default_rng(seed).random(x.shape) - 0.5


def score_with_atoms(model: RBM, x: np.ndarray) -> float:
    """Return the bound on the log-probability of integers for units with an atom at 0 and values up to 16."""
    at_end = x == LARGEST
    noisy = np.where(x == 0, 0.0, np.where(at_end, LARGEST - np.abs(with_noise(x, 1) - x), with_noise(x, 1)))
    return float(model.score(noisy) + np.log(0.5) * at_end.sum(1).mean())


def fit_and_score(table: str, model: str, train: np.ndarray, test: np.ndarray) -> float:
    """Return the held-out log-likelihood of a model in nats per row."""
    if table not in WHOLE_NUMBERS:
        return float(MODELS[model]().fit(train).score(test))
    if model == "RBM()":
        return score_with_atoms(RBM().fit(train), test)
    return float(MODELS[model]().fit(with_noise(train, 0)).score(with_noise(test, 1)))


def measure(table: str, model: str, n_splits: int, first: int) -> str:
    """Fit and score all splits; returns a cell of the table with the mean score and the seconds per split."""
    scores, seconds = [], 0.0
    for train, test in splits(table, n_splits, first):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores.append(fit_and_score(table, model, train, test))
        seconds += time.perf_counter() - start
    return f"{np.mean(scores):.2f} ({seconds / n_splits:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5, help="number of splits")
    parser.add_argument("--first", type=int, default=0, help="random seed of the first split")
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tables = arguments.only or list(TABLES)
    lines = [f"| model | {' | '.join(tables)} |", f"| --- |{' --- |' * len(tables)}"]
    for model in MODELS:
        cells = [measure(table, model, arguments.splits, arguments.first) for table in tables]
        lines.append(f"| {model} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
