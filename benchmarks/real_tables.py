"""Held-out log-likelihoods of real-valued tables, in nats and in the units of the data, against simple models.

    python benchmarks/real_tables.py [--splits 5] [--only wine] [--out FILE.md]

Each table is split five times, 80 % for training; columns that are constant in the training part are left out for all
models. `RBM()` has its default settings. Times are those of `fit` and `score` together.
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
ATOMS = {("digits", "RBM()")}  # has a probability, not a density, where a pixel is 0


def splits(table: str, n_splits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows."""
    x = TABLES[table]().data
    for seed in range(n_splits):
        train, test = train_test_split(x, test_size=0.2, random_state=seed)
        varies = train.min(0) < train.max(0)
        yield train[:, varies], test[:, varies]


def measure(table: str, model: str, n_splits: int) -> str:
    """A cell of the table: the mean over the splits, and the seconds for each."""
    scores, seconds = [], 0.0
    for train, test in splits(table, n_splits):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores.append(MODELS[model]().fit(train).score(test))
        seconds += time.perf_counter() - start
    mark = "*" if (table, model) in ATOMS else ""
    return f"{np.mean(scores):.2f}{mark} ({seconds / n_splits:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tables = arguments.only or list(TABLES)
    lines = [f"| model | {' | '.join(tables)} |", f"| --- |{' --- |' * len(tables)}"]
    for model in MODELS:
        lines.append(f"| {model} | {' | '.join(measure(table, model, arguments.splits) for table in tables)} |")
        print(lines[-1], flush=True)
    lines += ["", "\\* Relative to a measure with an atom at 0: not a density, and not comparable to the others."]
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
