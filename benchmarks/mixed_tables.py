"""Mixed tables with gaps: imputation, prediction of a column, cost of training with gaps, and anomaly detection.

    python benchmarks/mixed_tables.py TASK FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER contains penguins.csv and mpg.csv; the other tables are scikit-learn's. All machines are `RBM(random_state=seed)`
with default settings. TASK is one of:

impute      In the first pattern of gaps, 10 % or 30 % of all cells are removed at random. In the second pattern, the
            probability that a number is removed grows with its rank in the column. The imputers are fitted to the table
            with gaps and fill them. The error of numbers is the root mean square error, divided by the standard
            deviation of each column; the error of categories is the error rate. For scikit-learn's imputers, columns
            are standardized and categories are one-hot encoded.
predict     A quarter of the rows are held out. The machine models all columns together and predicts one of them.
            Logistic regression is fitted to predict this column only, on standardized columns and one-hot categories.
            In the case with gaps, 30 % of the cells are removed, except in the predicted column; for logistic
            regression, gaps are filled with column means. Results are error rates and log-losses in nats.
train       A machine is fitted to complete rows, to rows with 30 % of their cells removed, and to the same rows with
            gaps filled by the mean or the most frequent category. Held-out log-likelihoods are exact. The cost is the
            loss of the second version relative to the loss of the third.
anomalies   In 5 % of the rows, the values of a third of the columns are replaced by values from other rows, a different
            row for each column. The result is the area under the ROC curve of the log-likelihood of the rows, compared
            to IsolationForest. "Columns" is the fraction of replaced cells among the most surprising cells of the
            modified rows; as many cells are selected as were replaced, so that random selection scores one third.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tapmachine import RBM

TABLES = ("penguins", "mpg", "wine", "breast_cancer", "diabetes", "digits")
PATTERNS = (("random", 0.1), ("random", 0.3), ("largest", 0.1), ("largest", 0.3))
PREDICTED = {"penguins": "species", "mpg": "origin", "wine": "target", "breast_cancer": "target", "iris": "target"}
REMOVED = 0.3  # fraction of the cells, for predictions and for training
WRONG_ROWS, WRONG_COLUMNS = 0.05, 1 / 3
Rows = Iterator[tuple[str, tuple[float, ...]]]  # labels of a line, and its numbers

# ----- tables


def load(name: str, folder: Path) -> pd.DataFrame:
    """Return a complete table, as read by pandas or scikit-learn, with classes as a categorical column.

    Args:
        name: One of TABLES, or another table of scikit-learn, such as iris.
        folder: Folder that contains penguins.csv and mpg.csv.
    """
    if name in ("penguins", "mpg"):
        return pd.read_csv(folder / f"{name}.csv").drop(columns="name", errors="ignore").dropna(ignore_index=True)
    data = getattr(datasets, f"load_{name}")(as_frame=True)
    table = data.frame.loc[:, data.frame.nunique() > 1]  # some pixels of the digits are constant
    if name == "diabetes":
        return table.assign(sex=np.where(table["sex"] > 0, "b", "a"))  # two values
    if hasattr(data, "target_names") and "target" in table:
        names = np.array([str(label) for label in data.target_names])
        return table.assign(target=pd.Categorical(names[table["target"]]))
    return table


def numeric(table: pd.DataFrame) -> list[str]:
    """Names of the numeric columns."""
    return list(table.select_dtypes("number").columns)


def categorical(table: pd.DataFrame) -> list[str]:
    """Names of the categorical columns."""
    return [name for name in table.columns if name not in numeric(table)]


def cells_to_remove(table: pd.DataFrame, pattern: str, share: float, seed: int) -> np.ndarray:  # (N, n), bool
    """Return a mask of cells to remove, so that every row keeps at least one cell.

    With the pattern "largest", the probability of removing a number grows with its rank in the column. Otherwise all
    cells have the same probability.
    """
    draw = np.random.default_rng(seed)
    probability = pd.DataFrame(share, index=table.index, columns=table.columns)
    if pattern == "largest":
        for name in numeric(table):
            probability[name] = 2 * share * table[name].rank(method="first") / len(table)
    removed = draw.random(table.shape) < probability.to_numpy()
    removed[removed.all(1), 0] = False
    return removed


def one_hot(table: pd.DataFrame, like: pd.DataFrame, drop_first: bool = False) -> np.ndarray:
    """Return numeric columns, then a column for each category of another table, with NaN for gaps.

    IterativeImputer needs `drop_first`: since one-hot columns add up to 1, a regression on all of them returns their
    means.
    """
    parts = [table[numeric(like)].to_numpy(float)]
    for name in categorical(like):
        states = np.unique(like[name].astype(str))
        part = (table[name].astype(str).to_numpy()[:, None] == states).astype(float)
        part[table[name].isna()] = np.nan
        parts.append(part[:, 1:] if drop_first else part)
    return np.concatenate(parts, 1)


def from_one_hot(filled: np.ndarray, like: pd.DataFrame, drop_first: bool = False) -> pd.DataFrame:
    """Convert the result of `one_hot` back to a table, with the category of the highest value."""
    numbers = numeric(like)
    columns, first = {name: filled[:, place] for place, name in enumerate(numbers)}, len(numbers)
    for name in categorical(like):
        states = np.unique(like[name].astype(str))
        values = filled[:, first : first + len(states) - drop_first]
        first += values.shape[1]
        if drop_first:
            values = np.column_stack((1 - values.sum(1), values))
        columns[name] = states[values.argmax(1)]
    return pd.DataFrame(columns, index=like.index)[list(like.columns)]


# ----- imputation


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


def imputed(table: pd.DataFrame, pattern: str, share: float, seed: int) -> dict[str, tuple[float, ...]]:
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


def impute(name: str, table: pd.DataFrame, splits: int) -> Rows:
    for pattern, share in PATTERNS:
        found = [imputed(table, pattern, share, seed) for seed in range(splits)]
        for imputer in found[0]:
            values = np.mean([split[imputer] for split in found], 0)
            yield f"{name} | {pattern} {share:.0%} | {imputer}", tuple(values)


# ----- prediction


def predicted(complete: pd.DataFrame, column: str, gaps: float, seed: int) -> list[float]:
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


def predict(name: str, table: pd.DataFrame, splits: int) -> Rows:
    if name in PREDICTED:
        column = PREDICTED[name]
        for gaps in (0.0, REMOVED):
            values = np.mean([predicted(table, column, gaps, seed) for seed in range(splits)], 0)
            yield f"{name} | {column} | {gaps:.0%}", tuple(values)


# ----- cost of gaps in training


def filled(gappy: pd.DataFrame) -> pd.DataFrame:
    """Return the table with gaps filled by column means or most frequent categories."""
    values = {name: gappy[name].mean() for name in numeric(gappy)}
    return gappy.fillna(values | {name: gappy[name].mode()[0] for name in categorical(gappy)})


def trained(table: pd.DataFrame, seed: int) -> list[float]:
    """Return the held-out log-likelihoods after training on complete rows, with gaps, and with gaps filled."""
    train, test = train_test_split(table, test_size=0.25, random_state=seed)
    train = train.astype(dict.fromkeys(numeric(train), float))  # as for columns with gaps
    test = test.astype(dict.fromkeys(numeric(test), float))
    gappy = train.mask(cells_to_remove(train, "random", REMOVED, seed))
    return [RBM(random_state=seed).fit(rows).score(test) for rows in (train, gappy, filled(gappy))]


def train(name: str, table: pd.DataFrame, splits: int) -> Rows:
    complete, gappy, by_means = np.mean([trained(table, seed) for seed in range(splits)], 0)
    yield name, (complete, gappy, by_means, (complete - gappy) / (complete - by_means))


# ----- anomalies


def with_anomalies(table: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the table with wrong cells, and a mask of the wrong cells, (N, n)."""
    draw, (n_rows, n_columns) = np.random.default_rng(seed), table.shape
    replaced, wrong = table.copy(), np.zeros(table.shape, bool)
    for row in draw.choice(n_rows, round(WRONG_ROWS * n_rows), replace=False):
        for column in draw.choice(n_columns, max(1, round(WRONG_COLUMNS * n_columns)), replace=False):
            replaced.iloc[row, column] = table.iloc[draw.integers(n_rows), column]
            wrong[row, column] = True
    return replaced, wrong


def detected(table: pd.DataFrame, seed: int) -> tuple[float, float, float, float]:
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


def anomalies(name: str, table: pd.DataFrame, splits: int) -> Rows:
    yield name, tuple(np.mean([detected(table, seed) for seed in range(splits)], 0))


TASKS: dict[str, tuple[Callable[[str, pd.DataFrame, int], Rows], str]] = {
    "impute": (impute, "table | gaps | imputer | error of numbers | error rate | in 90 % intervals | seconds"),
    "predict": (predict, "table | column | gaps | regression: error | log-loss | tapmachine: error | log-loss"),
    "train": (train, "table | complete | with gaps | filled by means | cost"),
    "anomalies": (anomalies, "table | IsolationForest | tapmachine | columns | seconds"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: print only)")
    options = parser.parse_args()
    measure, head = TASKS[options.task]
    lines = [f"| {head} |", "| --- " * (1 + head.count("|")) + "|"]
    print("\n".join(lines))
    warnings.simplefilter("ignore")
    for name in options.tables.split(","):
        for label, values in measure(name, load(name, options.folder), options.splits):
            cells = ["" if np.isnan(value) else f"{value:.3f}" for value in values]
            lines.append(f"| {label} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
