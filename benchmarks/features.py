"""Features for a classifier: RBM beside scikit-learn's BernoulliRBM and raw pixels, on the digits, cross-validated.

python benchmarks/features.py [--hidden 100] [--epochs 50] [--folds 3]

Every candidate gets the same number of hidden units and epochs, and its best of a few penalties of the classifier.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tapmachine import RBM

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--folds", type=int, default=3)
    options = parser.parse_args()
    digits = load_digits()
    x, y = digits.data / 16, digits.target
    size = {"n_components": options.hidden, "n_iter": options.epochs, "random_state": 0}
    candidates = {
        "raw pixels": [],
        "BernoulliRBM, step size 0.1": [BernoulliRBM(learning_rate=0.1, **size)],
        "BernoulliRBM, step size 0.06": [BernoulliRBM(learning_rate=0.06, **size)],
        "BernoulliRBM, step size 0.01": [BernoulliRBM(learning_rate=0.01, **size)],
        "RBM, binarised at 0.25": [RBM(options.hidden, binarise=0.25, epochs=options.epochs)],
        "RBM, as it comes": [RBM(options.hidden, epochs=options.epochs)],
    }
    for name, steps in candidates.items():
        start = time.perf_counter()
        scores: dict[float, list[float]] = {penalty: [] for penalty in PENALTIES}
        for train, test in StratifiedKFold(options.folds, shuffle=True, random_state=0).split(x, y):
            features = make_pipeline(*steps, StandardScaler()).fit(x[train])
            seen, unseen = features.transform(x[train]), features.transform(x[test])
            for penalty, values in scores.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of a classifier that could go on
                    classifier = LogisticRegression(C=penalty, max_iter=2000).fit(seen, y[train])
                values.append(classifier.score(unseen, y[test]))
        penalty, values = max(scores.items(), key=lambda item: np.mean(item[1]))
        error = np.std(values) / len(values) ** 0.5
        seconds = time.perf_counter() - start
        print(f"{name:32} {np.mean(values):.4f} ± {error:.4f}  (C = {penalty}; {seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
