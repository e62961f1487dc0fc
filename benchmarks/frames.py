"""Tables as DataFrames with numbers, categories and missing values."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

TABLES = ("penguins", "mpg", "wine", "breast_cancer", "diabetes", "digits")
PATTERNS = (("random", 0.1), ("random", 0.3), ("largest", 0.1), ("largest", 0.3))


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
