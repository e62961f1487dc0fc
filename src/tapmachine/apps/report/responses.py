"""Associations of hidden units and classes with the columns of a table."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.features import hidden_means
from tapmachine.apps.report.columns import Array, Column, association
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.units import Gaussian, Mixed

MOST_UNITS = 24  # maximum number of hidden units shown
MOST_ROWS = 2000  # maximum number of data rows used to compute the associations


class ClassSummary(NamedTuple):
    """One class of a mixture model of a table.

    Attributes:
        share: Fraction of the rows that belong to the class.
        values: Typical value of each column: the mean, or the most probable category and its probability.
        pulls: Deviation of each typical value from the average of all rows, shown as the color of the table cell.
    """

    share: float
    values: list[str]
    pulls: list[float]


def hidden_responses(machine: BoltzmannMachine, x: Tensor, columns: list[Column]) -> tuple[list[str], Array]:
    """Compute the associations between columns and the hidden units that vary most between rows.

    Returns:
        The names of the hidden units, and the associations, (n_units, n_columns).
    """
    if machine.is_pairwise or not columns:
        return [], np.zeros((0, len(columns)))
    complete = x[~x.isnan().any(1)] if x.is_floating_point() else x
    rows = check_rows(machine, complete[:MOST_ROWS].to(machine.device))
    means = hidden_means(machine, rows)[0].flatten(1).double().cpu().numpy()
    spread = means.std(0) * _is_latent(machine, means.shape[1])
    order = [unit for unit in np.argsort(-spread, kind="stable")[:MOST_UNITS] if spread[unit] > 1e-6]
    of_columns = [own.values(complete[:MOST_ROWS]) for own in columns]
    kinds = [own.kind != "categorical" for own in columns]
    table = [
        [association(means[:, unit], own, True, kind) for own, kind in zip(of_columns, kinds, strict=True)]
        for unit in order
    ]
    return [f"unit {unit}" for unit in order], np.array(table).reshape(len(order), len(columns))


def _is_latent(machine: BoltzmannMachine, n: int) -> Array:
    """Return 0 for hidden units that only encode the correlations of Gaussian columns, and 1 for all others."""
    hidden = machine.layers[1]
    if not isinstance(hidden, Mixed):
        return np.ones(n)
    return np.concatenate(
        [
            np.full(size, float(type(block) is not Gaussian))
            for block, size in zip(hidden.blocks, hidden.sizes, strict=True)
        ]
    )


def classes_of(machine: BoltzmannMachine, columns: list[Column]) -> list[ClassSummary]:
    """Return the classes of a table by decreasing size.

    The list is empty for machines without classes, and if components have different covariances.
    """
    mixture = mixture_of(machine)
    if mixture is None or not mixture.blocks or len(mixture.covariances) > 1:
        return []
    shares, means = mixture.probabilities, mixture.component_means()
    overall = shares @ means
    spread = (shares @ (means - overall) ** 2).sqrt()
    spread[mixture.real] = (spread[mixture.real] ** 2 + mixture.covariances[0].diagonal()).sqrt()
    found = []
    for index in shares.argsort(descending=True).tolist():
        texts, pulls = [], []
        for column in columns:
            part, usual = means[index][column.place], overall[column.place]
            if column.is_number:
                texts.append(f"{column.shift + column.scale * float(part[0]):.4g}")
                pulls.append(float((part[0] - usual[0]) / spread[column.place][0].clamp(min=1e-12)))
                continue
            chances = torch.stack((1 - part[0], part[0])) if column.kind == "binary" else part
            before = torch.stack((1 - usual[0], usual[0])) if column.kind == "binary" else usual
            best = int(chances.argmax())
            texts.append(f"{column.categories[best]} {100 * float(chances[best]):.0f} %")
            pulls.append(2 * float(chances[best] - before[best]))
        found.append(ClassSummary(float(shares[index]), texts, pulls))
    return found
