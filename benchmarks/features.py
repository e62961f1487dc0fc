"""Features for a classifier of digits: RBM, scikit-learn's BernoulliRBM and raw pixels, compared by cross-validation.

python benchmarks/features.py [--hidden 100] [--epochs 50] [--folds 3] [--shifted]

All candidates have the same number of hidden units and epochs, and each uses the best of several classifier penalties.
With --shifted, the data contain each digit and four copies shifted by one pixel in each direction, as in scikit-learn's
example for BernoulliRBM. All copies of a digit are in the same fold.
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


def with_shifts(images: np.ndarray) -> np.ndarray:
    """Return the images, (N, 8, 8), and four copies of each, shifted by one pixel, as rows."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    places = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return np.concatenate([padded[:, top : top + 8, left : left + 8].reshape(-1, 64) for top, left in places])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--shifted", action="store_true")
    options = parser.parse_args()
    digits = load_digits()
    images, y = digits.images / 16, digits.target
    rows = with_shifts if options.shifted else (lambda images: images.reshape(-1, 64))
    size = {"n_components": options.hidden, "n_iter": options.epochs, "random_state": 0}
    candidates = {
        "raw pixels": [],
        "BernoulliRBM, learning rate 0.1": [BernoulliRBM(learning_rate=0.1, **size)],
        "BernoulliRBM, learning rate 0.06": [BernoulliRBM(learning_rate=0.06, **size)],
        "BernoulliRBM, learning rate 0.01": [BernoulliRBM(learning_rate=0.01, **size)],
        "RBM, binarized at 0.25": [RBM(options.hidden, binarize=0.25, epochs=options.epochs)],
        "RBM, default": [RBM(options.hidden, epochs=options.epochs)],
    }
    for name, steps in candidates.items():
        start = time.perf_counter()
        scores: dict[float, list[float]] = {penalty: [] for penalty in PENALTIES}
        for train, test in StratifiedKFold(options.folds, shuffle=True, random_state=0).split(images, y):
            x, x_test = rows(images[train]), rows(images[test])
            labels, labels_test = (np.tile(y[part], 5 if options.shifted else 1) for part in (train, test))
            features = make_pipeline(*steps, StandardScaler()).fit(x)
            seen, unseen = features.transform(x), features.transform(x_test)
            for penalty, values in scores.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the classifier has reached its maximum number of iterations
                    classifier = LogisticRegression(C=penalty, max_iter=2000).fit(seen, labels)
                values.append(classifier.score(unseen, labels_test))
        penalty, values = max(scores.items(), key=lambda item: np.mean(item[1]))
        error = np.std(values) / len(values) ** 0.5
        seconds = time.perf_counter() - start
        print(f"{name:32} {np.mean(values):.4f} ± {error:.4f}  (C = {penalty}; {seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
