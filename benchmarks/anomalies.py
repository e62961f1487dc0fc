"""Anomaly detection in tables: ranking of rows with wrong cells by log-likelihood, compared to IsolationForest.

    python benchmarks/anomalies.py FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER contains penguins.csv and mpg.csv; the other tables are scikit-learn's. In 5 % of the rows, the values of a third
of the columns are replaced by values from other rows, a different row for each column. Every value is therefore typical
of its column, and only the combination is unusual. Both methods are fitted to the resulting table without labels and
score its rows: `RBM(random_state=seed).fit(table).score_samples(table)`, and IsolationForest with default settings and
one-hot categories. The result is the area under the ROC curve. "Columns" is the fraction of replaced cells among the
most surprising cells of the modified rows (`RBM.surprise` minus the median of the column). As many cells are selected
as were replaced, so that random selection scores one third.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from frames import TABLES, load, one_hot
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

from tapmachine import RBM

SHARE_OF_ROWS, SHARE_OF_COLUMNS = 0.05, 1 / 3


def with_anomalies(table: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the table with wrong cells, and a mask of the wrong cells, (N, n)."""
    draw, (n_rows, n_columns) = np.random.default_rng(seed), table.shape
    replaced, wrong = table.copy(), np.zeros(table.shape, bool)
    for row in draw.choice(n_rows, round(SHARE_OF_ROWS * n_rows), replace=False):
        for column in draw.choice(n_columns, max(1, round(SHARE_OF_COLUMNS * n_columns)), replace=False):
            replaced.iloc[row, column] = table.iloc[draw.integers(n_rows), column]
            wrong[row, column] = True
    return replaced, wrong


def measure(table: pd.DataFrame, seed: int) -> tuple[float, float, float, float]:
    """Return the areas under the curve of IsolationForest and the machine, the score of columns, and the time."""
    replaced, wrong = with_anomalies(table, seed)
    is_anomaly = wrong.any(1)
    forest = IsolationForest(random_state=seed).fit(one_hot(replaced, replaced))
    of_forest = roc_auc_score(is_anomaly, -forest.score_samples(one_hot(replaced, replaced)))
    began = time.perf_counter()
    model = RBM(random_state=seed).fit(replaced)
    of_machine = roc_auc_score(is_anomaly, -model.score_samples(replaced))
    seconds = time.perf_counter() - began
    surprise, blamed = model.surprise(replaced), []
    excess = (surprise - surprise.median()).to_numpy()  # densities of columns have different units
    for cells, expected in zip(excess[is_anomaly], wrong[is_anomaly], strict=True):
        blamed.append(expected[np.argsort(-cells)[: expected.sum()]].mean())
    return float(of_forest), float(of_machine), float(np.mean(blamed)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: print only)")
    options = parser.parse_args()
    lines = ["| table | IsolationForest | tapmachine | columns | seconds |", "| --- | --- | --- | --- | --- |"]
    print("\n".join(lines))
    for name in options.tables.split(","):
        table = load(name, options.folder)
        forest, machine, columns, seconds = np.mean([measure(table, s) for s in range(options.splits)], 0)
        lines.append(f"| {name} | {forest:.3f} | {machine:.3f} | {columns:.2f} | {seconds:.1f} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
