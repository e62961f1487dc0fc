"""Prediction of a categorical column from the other columns, compared to logistic regression.

    python benchmarks/prediction.py FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER contains penguins.csv and mpg.csv; the other tables are scikit-learn's. A quarter of the rows are held out.
`RBM(random_state=seed).fit(rows)` models all columns together, and `predict_proba(others, column)` predicts one of
them. Logistic regression is fitted to predict this column only, with default settings on standardized columns and
one-hot categories. In the case with gaps, 30 % of the cells of all rows are removed at random, except in the predicted
column; for logistic regression, gaps are filled with column means. The results are error rates and log-losses in nats
on the held-out rows.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from frames import cells_to_remove, load, one_hot
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tapmachine import RBM

COLUMNS = {"penguins": "species", "mpg": "origin", "wine": "target", "breast_cancer": "target", "iris": "target"}


def measure(complete: pd.DataFrame, column: str, gaps: float, seed: int) -> list[float]:
    """Return the error rate and log-loss of logistic regression, then those of the machine."""
    removed = cells_to_remove(complete, "random", gaps, seed)
    removed[:, complete.columns == column] = False
    table = complete.mask(removed)
    rows = train_test_split(np.arange(len(table)), test_size=0.25, random_state=seed, stratify=complete[column])
    truth, others = table[column].astype(str), table.drop(columns=column)
    x = one_hot(others, complete.drop(columns=column))
    classifier = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(x[rows[0]], truth[rows[0]])
    states = list(classifier.classes_)
    by_regression = classifier.predict_proba(x[rows[1]])
    model = RBM(random_state=seed).fit(table.iloc[rows[0]])
    by_machine = model.predict_proba(others.iloc[rows[1]], column)[states].to_numpy()
    results, expected = [], truth.iloc[rows[1]].to_numpy()
    for probabilities in (by_regression, by_machine):
        wrong = np.array(states)[probabilities.argmax(1)] != expected
        results += [float(wrong.mean()), float(log_loss(expected, probabilities, labels=states))]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default="penguins,mpg,wine,breast_cancer")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: print only)")
    options = parser.parse_args()
    lines = ["| table | column | gaps | logistic regression: error | log-loss | tapmachine: error | log-loss |"]
    lines.append("| --- " * 7 + "|")
    print("\n".join(lines))
    warnings.simplefilter("ignore")
    for name in options.tables.split(","):
        table, column = load(name, options.folder), COLUMNS[name]
        for gaps in (0.0, 0.3):
            values = np.mean([measure(table, column, gaps, seed) for seed in range(options.splits)], 0)
            cells = " | ".join(f"{value:.3f}" for value in values)
            lines.append(f"| {name} | {column} | {gaps:.0%} | {cells} |")
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
