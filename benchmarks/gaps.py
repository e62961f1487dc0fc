"""Imputation of tables with gaps: numbers, categories and intervals, against scikit-learn's imputers.

    python benchmarks/gaps.py FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER holds penguins.csv and mpg.csv; the other tables are scikit-learn's. Cells are taken out at random (10 % and 30 %
of all cells), or not at random: with a probability that grows with the rank of a value in its column, so that large
values are missing more often. Each imputer is fitted to the table with gaps and fills them. Numbers: root mean square
error, divided by the standard deviation of each column. Categories: error rate. scikit-learn's imputers have their
defaults and see columns that are standardized (which KNNImputer needs) with categories one-hot encoded; the category
with the highest value is taken.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from tapmachine import Categorical, Gaussian, Mixed
from tapmachine.posterior.table import TablePosterior
from tapmachine.training.tables import start_for_table

TABLES = ("penguins", "wine", "diabetes", "mpg", "breast_cancer", "digits")
PATTERNS = (("random", 0.1), ("random", 0.3), ("largest", 0.1), ("largest", 0.3))
N_HIDDEN = 32


class Table(NamedTuple):
    """Numbers and codes of categories, complete."""

    numbers: np.ndarray  # (N, n)
    categories: np.ndarray  # (N, m), 0, 1, …

    @property
    def n_states(self) -> list[int]:
        return [int(column.max()) + 1 for column in self.categories.T]


def load(name: str, folder: Path) -> Table:
    if name in ("penguins", "mpg"):
        texts = {"penguins": ("species", "island", "sex"), "mpg": ("cylinders", "origin")}[name]
        with open(folder / f"{name}.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if all(v not in ("", "NA", "NaN") for v in row.values())]
        left_out = {"mpg": ("name",)}.get(name, ())
        numbers = [[float(v) for k, v in row.items() if k not in texts and k not in left_out] for row in rows]
        codes = [np.unique([row[k] for row in rows], return_inverse=True)[1] for k in texts]
        return Table(np.array(numbers), np.stack(codes, 1))
    loaders = {"wine": load_wine, "diabetes": load_diabetes, "breast_cancer": load_breast_cancer, "digits": load_digits}
    data = loaders[name]()
    x = data.data.astype(float)
    if name == "digits":
        x = x[:, x.std(0) > 0]
    categories = data.target[:, None] if name in ("wine", "breast_cancer") else np.zeros((len(x), 0), int)
    if name == "diabetes":  # sex is a column of two values
        categories, x = (x[:, 1:2] > 0).astype(int), np.delete(x, 1, 1)
    return Table(x, categories)


def gaps(table: Table, pattern: str, share: float, seed: int) -> np.ndarray:  # (N, n + m), bool
    """Cells to take out; every row keeps one cell, and every column a tenth of its cells."""
    rng = np.random.default_rng(seed)
    values = np.concatenate((table.numbers, table.categories), 1)
    probability = np.full(values.shape, share)
    if pattern == "largest":
        ranks = values.argsort(0, kind="stable").argsort(0) / len(values)
        probability[:, : table.numbers.shape[1]] = 2 * share * ranks[:, : table.numbers.shape[1]]
    out = rng.random(values.shape) < probability
    out[np.arange(len(out))[out.all(1)], 0] = False
    return out


def one_hot(table: Table, out: np.ndarray) -> np.ndarray:
    """Numbers and one-hot categories, NaN for gaps."""
    n = table.numbers.shape[1]
    parts = [np.where(out[:, :n], np.nan, table.numbers)]
    for index, (column, q) in enumerate(zip(table.categories.T, table.n_states, strict=True)):
        part = np.eye(q)[column]
        part[out[:, n + index]] = np.nan
        parts.append(part)
    return np.concatenate(parts, 1)


def imputed_by_machine(table: Table, x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = table.numbers.shape[1]
    units = Mixed([Gaussian(n), *(Categorical(1, q) for q in table.n_states)])
    rows = torch.from_numpy(x)
    start = start_for_table(rows, N_HIDDEN, seed, units=units)
    posterior = TablePosterior.of(start.machine, rows)
    low, high = posterior._replace(mixture=posterior.mixture).intervals(0.9)
    return posterior.moments.mean.numpy(), low.numpy()[:, :n], high.numpy()[:, :n]


def errors(table: Table, out: np.ndarray, filled: np.ndarray) -> tuple[float, float]:
    n = table.numbers.shape[1]
    off = (filled[:, :n] - table.numbers) / table.numbers.std(0)
    wrong, first = [], n
    for index, q in enumerate(table.n_states):
        missing = out[:, n + index]
        wrong.append((filled[missing, first : first + q].argmax(1) != table.categories[missing, index]).astype(float))
        first += q
    return float(np.sqrt(np.mean(off[out[:, :n]] ** 2))), float(np.concatenate(wrong).mean()) if wrong else np.nan


def measure(table: Table, pattern: str, share: float, seed: int) -> dict[str, tuple[float, ...]]:
    out, n = gaps(table, pattern, share, seed), table.numbers.shape[1]
    x, results = one_hot(table, out), {}
    mean, deviation = np.nanmean(x, 0), np.nanstd(x, 0)
    deviation[deviation == 0] = 1.0
    for imputer in (SimpleImputer(), KNNImputer(), IterativeImputer(random_state=seed)):
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            filled = imputer.fit_transform((x - mean) / deviation) * deviation + mean
        results[type(imputer).__name__] = (*errors(table, out, filled), np.nan, time.perf_counter() - began)
    began = time.perf_counter()
    filled, low, high = imputed_by_machine(table, x, seed)
    inside = ((low <= table.numbers) & (table.numbers <= high))[out[:, :n]].mean()
    results["tapmachine"] = (*errors(table, out, filled), float(inside), time.perf_counter() - began)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file (default: only printed)")
    options = parser.parse_args()
    lines = ["| table | gaps | imputer | error of numbers | error rate of categories | in 90 % intervals | seconds |"]
    lines.append("| --- " * 7 + "|")
    print("\n".join(lines))
    for name in options.tables.split(","):
        table = load(name, options.folder)
        for pattern, share in PATTERNS:
            splits = [measure(table, pattern, share, seed) for seed in range(options.splits)]
            for imputer in splits[0]:
                values = np.mean([split[imputer] for split in splits], 0)
                cells = ["" if np.isnan(v) else f"{v:.3f}" for v in values[:3]] + [f"{values[3]:.1f}"]
                lines.append(f"| {name} | {pattern} {share:.0%} | {imputer} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
