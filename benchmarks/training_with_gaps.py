"""Cost of training with gaps: held-out log-likelihoods of machines fitted to tables with 30 % of the cells missing.

    python benchmarks/training_with_gaps.py FOLDER [--tables penguins,wine] [--splits 5] [--out FILE.md]

FOLDER contains penguins.csv and mpg.csv; the other tables are scikit-learn's. A quarter of the rows are held out
without gaps. `RBM(random_state=seed)` is fitted to three versions of the other rows: the complete rows, the rows with
30 % of their cells removed at random, and the same rows with gaps filled by the mean or the most frequent category of
the column. Log-likelihoods are exact, in nats per row and in the units of the columns. The cost is the loss of the
second version relative to the loss of the third.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from frames import categorical, cells_to_remove, load, numeric
from sklearn.model_selection import train_test_split

from tapmachine import RBM

SHARE = 0.3


def filled(gappy: pd.DataFrame) -> pd.DataFrame:
    """Return the table with gaps filled by column means or most frequent categories."""
    values = {name: gappy[name].mean() for name in numeric(gappy)}
    return gappy.fillna(values | {name: gappy[name].mode()[0] for name in categorical(gappy)})


def measure(table: pd.DataFrame, seed: int) -> list[float]:
    """Return the held-out log-likelihoods after training on complete rows, with gaps, and with gaps filled."""
    train, test = train_test_split(table, test_size=0.25, random_state=seed)
    train = train.astype(dict.fromkeys(numeric(train), float))  # as for columns with gaps
    test = test.astype(dict.fromkeys(numeric(test), float))
    gappy = train.mask(cells_to_remove(train, "random", SHARE, seed))
    return [RBM(random_state=seed).fit(rows).score(test) for rows in (train, gappy, filled(gappy))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", default="penguins,mpg,wine,breast_cancer,diabetes")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: print only)")
    options = parser.parse_args()
    lines = ["| table | complete | with gaps | filled by means | cost |", "| --- " * 5 + "|"]
    print("\n".join(lines))
    for name in options.tables.split(","):
        table = load(name, options.folder)
        complete, gappy, by_means = np.mean([measure(table, seed) for seed in range(options.splits)], 0)
        cost = (complete - gappy) / (complete - by_means)
        lines.append(f"| {name} | {complete:.2f} | {gappy:.2f} | {by_means:.2f} | {cost:.2f} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
