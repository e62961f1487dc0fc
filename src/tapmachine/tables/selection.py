"""Cross-validation of latent class models, scored by the likelihood of the observed cells in held-out rows."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.exact import Mixture
from tapmachine.tables.classes import Table, expectations, fit_classes
from tapmachine.tables.clusters import folds

SHRINKAGES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 1e-5)
MORE_SHRINKAGE = (3.0, 10.0)  # factors to try with several classes, because correlations within classes are weaker
WIDTHS = (1.0, 1.1, 1.2, 1.35, 1.5)  # factors of the covariance to choose from
WARM_STEPS = 8  # steps of expectation maximization that start from a similar mixture
COLD_STEPS = 20  # steps of expectation maximization that start from k-means
PATIENCE = 2  # number of candidates without a gain after which the search stops
SHARE_OF_ERROR = 0.5  # gain in standard errors below which fewer classes are preferred

Parts = list[tuple[Table, Table]]  # training and held-out rows of each fold


class Selection(NamedTuple):
    """Parameters chosen by cross-validation.

    Attributes:
        shrinkage: Fraction by which correlations are shrunk toward 0.
        n_classes: Number of classes.
        width: Factor applied to the covariance, which corrects for few rows and for heavy tails.
    """

    shrinkage: float
    n_classes: int
    width: float


@torch.no_grad()
def select(table: Table, candidates: list[int], seed: int) -> Selection:
    """Choose the shrinkage, the number of classes and the width that best predict held-out rows.

    Args:
        table: Rows to fit.
        candidates: Candidate numbers of classes in increasing order, starting with 1.
        seed: Random seed for the folds and for k-means.
    """
    parts = [(table.rows(fitted), table.rows(left_out)) for fitted, left_out in folds(len(table.x), seed)]
    shrinkage = _best_shrinkage(parts) if len(table.real) > 1 else 0.0
    singles = [fit_classes(some, 1, shrinkage) for some, _ in parts]
    fits, gains = {1: singles}, {1: _best_width(singles, parts)}
    best, without_gain = 1, 0
    for n_classes in candidates[1:]:
        fits[n_classes] = [
            fit_classes(some, n_classes, shrinkage, seed=seed, n_steps=COLD_STEPS, single=single)
            for (some, _), single in zip(parts, singles, strict=True)
        ]
        gains[n_classes] = _best_width(fits[n_classes], parts)
        without_gain = 0 if gains[n_classes][1].sum() > gains[best][1].sum() else without_gain + 1
        best = n_classes if without_gain == 0 else best
        if without_gain == PATIENCE:
            break
    n_classes = next(k for k in fits if _is_as_good(gains[k][1], gains[best][1]))
    chosen, score = Selection(shrinkage, n_classes, gains[n_classes][0]), float(gains[n_classes][1].sum())
    warm = fits[n_classes]
    for factor in MORE_SHRINKAGE if n_classes > 1 and 0 < shrinkage < SHRINKAGES[0] else ():
        more = min(factor * shrinkage, 1.0)
        warm = [
            fit_classes(some, n_classes, more, n_steps=WARM_STEPS, start=start)
            for (some, _), start in zip(parts, warm, strict=True)
        ]
        width, scores = _best_width(warm, parts)
        if float(scores.sum()) < score:
            break
        chosen, score = Selection(more, n_classes, width), float(scores.sum())
    return chosen


def _best_shrinkage(parts: Parts) -> float:
    """Return the shrinkage that maximizes the held-out likelihood of a single class."""
    totals = torch.zeros(len(SHRINKAGES), dtype=torch.float64)
    for some, others in parts:
        mixture = None
        for index, shrinkage in enumerate(SHRINKAGES):
            mixture = fit_classes(some, 1, shrinkage, n_steps=WARM_STEPS, start=mixture)
            totals[index] += others.weights @ expectations(mixture, others).log_likelihood
    return SHRINKAGES[int(totals.argmax())]


def _best_width(fits: list[Mixture], parts: Parts) -> tuple[float, Tensor]:
    """Return the width that maximizes the held-out likelihood, and the weighted log-likelihoods of held-out rows."""
    scores = []
    for width in WIDTHS if len(fits[0].real) else WIDTHS[:1]:
        wider = [fit.replace(covariances=width * fit.covariances) for fit in fits]
        of_folds = [
            others.weights * expectations(fit, others).log_likelihood
            for fit, (_, others) in zip(wider, parts, strict=True)
        ]
        scores.append(torch.cat(of_folds))
    best = int(torch.stack(scores).sum(1).argmax())
    return WIDTHS[best], scores[best]


def _is_as_good(scores: Tensor, best: Tensor) -> bool:
    """Return whether the difference between two scores is small compared with its standard error."""
    loss = best - scores
    return float(loss.sum()) <= SHARE_OF_ERROR * float(loss.std()) * math.sqrt(len(loss))
