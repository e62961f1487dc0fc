"""Imputation of tables with gaps: numbers, categories and intervals, compared to scikit-learn's imputers.

    python benchmarks/gaps.py FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER contains penguins.csv and mpg.csv; the other tables are scikit-learn's. In the first pattern of gaps, 10 % or 30
% of all cells are removed at random. In the second pattern, the probability that a number is removed grows with its
rank in the column, so that large values are missing more often. Each imputer is fitted to the table with gaps and fills
them, with default settings: `RBM(random_state=seed).fit(table).impute(table)`. The error of numbers is the root mean
square error, divided by the standard deviation of each column. The error of categories is the error rate. For
scikit-learn's imputers, columns are standardized and categories are one-hot encoded; the imputed category is the one
with the highest value.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from frames import PATTERNS, TABLES, categorical, cells_to_remove, from_one_hot, load, numeric, one_hot
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from tapmachine import RBM


def errors(table: pd.DataFrame, removed: np.ndarray, filled: pd.DataFrame) -> tuple[float, float]:
    """Return the normalized error of numbers and the error rate of categories."""
    gaps = pd.DataFrame(removed, table.index, table.columns)
    numbers, others = numeric(table), categorical(table)
    off = ((filled[numbers] - table[numbers]) / table[numbers].std(ddof=0)).to_numpy()[gaps[numbers]]
    wrong = (filled[others].astype(str) != table[others].astype(str)).to_numpy()[gaps[others]]
    return float(np.sqrt(np.mean(off**2))), float(wrong.mean()) if others else np.nan


def share_inside(table: pd.DataFrame, removed: np.ndarray, low: pd.DataFrame, high: pd.DataFrame) -> float:
    """Return the fraction of the missing numbers that lie in their intervals."""
    numbers = numeric(table)
    inside = (low[numbers] <= table[numbers]) & (table[numbers] <= high[numbers])
    return float(inside.to_numpy()[removed[:, table.columns.isin(numbers)]].mean())


def measure(table: pd.DataFrame, pattern: str, share: float, seed: int) -> dict[str, tuple[float, ...]]:
    """Return the errors, the coverage of intervals and the seconds of each imputer."""
    removed, results = cells_to_remove(table, pattern, share, seed), {}
    gappy = table.mask(removed)
    for imputer in (SimpleImputer(), KNNImputer(), IterativeImputer(random_state=seed)):
        began = time.perf_counter()
        drop_first = isinstance(imputer, IterativeImputer)
        x = one_hot(gappy, table, drop_first)
        mean, deviation = np.nanmean(x, 0), np.nanstd(x, 0)
        deviation[deviation == 0] = 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            filled = imputer.fit_transform((x - mean) / deviation) * deviation + mean
        found = errors(table, removed, from_one_hot(filled, table, drop_first))
        results[type(imputer).__name__] = (*found, np.nan, time.perf_counter() - began)
    began = time.perf_counter()
    model = RBM(random_state=seed).fit(gappy)
    found = errors(table, removed, model.impute(gappy))
    seconds = time.perf_counter() - began
    results["tapmachine"] = (*found, share_inside(table, removed, *model.intervals(gappy)), seconds)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: print only)")
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
