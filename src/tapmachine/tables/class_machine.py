"""Initialization for tables with missing values, weights or columns of several types, by latent classes."""

import math

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.rows import spaced
from tapmachine.exact import Mixture
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.machine.whitening import in_coordinates
from tapmachine.tables.classes import Table, fit_classes
from tapmachine.tables.selection import SHRINKAGES, Selection, select
from tapmachine.units import Categorical, Gaussian, Mixed, Units

CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of classes to choose from
SELECTION_ROWS = 1000  # maximum number of rows for cross-validation
FEW_ROWS = 20  # with fewer rows, there is only one class


def fit_table(table: Table, most_classes: int, seed: int = 0) -> tuple[Mixture, list[str]]:
    """Fit a mixture of latent classes to a table, and return the mixture and notes on the data.

    The shrinkage, the number of classes and the width are chosen by cross-validation.
    """
    selection = Selection(SHRINKAGES[0], 1, 1.0)
    if len(table.x) >= FEW_ROWS:
        some = table.rows(spaced(torch.arange(len(table.x)), SELECTION_ROWS))
        selection = select(some, [k for k in CLASSES if k <= max(1, most_classes)], seed)
    mixture = fit_classes(table, selection.n_classes, selection.shrinkage, seed=seed)
    mixture = mixture.replace(covariances=selection.width * mixture.covariances)
    return mixture, [f"{selection.n_classes} classes"] if selection.n_classes > 1 else []


@torch.no_grad()
def machine_of_classes(mixture: Mixture, table: Table) -> BoltzmannMachine:
    """Return the machine of a mixture of latent classes, in the units of the data and in float64.

    The constant ln Z is 0, up to the normalization of the hidden priors. The hidden layer has one `Gaussian` unit per
    real column, which models the correlations, followed by a `Categorical` unit for the classes.
    """
    n_classes = max(2, len(mixture.log_weights))  # a single class is represented by two equal classes
    log_shares, means = mixture.log_weights, mixture.means
    fields = [field.flatten(1) for field in mixture.fields]
    of_others = [b.log_partition(Tilt(f, 0.0)).sum(1) for b, f in zip(mixture.blocks, mixture.fields, strict=True)]
    if len(log_shares) < n_classes:
        log_shares, means, *fields = (z.repeat(2, *[1] * (z.dim() - 1)) for z in (log_shares, means, *fields))
        of_others = [z.repeat(2) for z in of_others]
    for z in of_others:
        log_shares = log_shares - z
    hidden: Units = Categorical(1, n_classes, field=log_shares.unsqueeze(0))
    n_real = len(table.real)
    weights = torch.zeros(sum(math.prod(b.state_shape) for b in table.blocks), n_real + n_classes, dtype=torch.float64)
    blocks = list(table.blocks)
    if n_real:
        lower = torch.linalg.cholesky(mixture.covariances[0])
        centers = torch.linalg.solve_triangular(lower, means.T, upper=False)
        hidden = Categorical(1, n_classes, field=(log_shares - 0.5 * (centers**2).sum(0)).unsqueeze(0))
        independent = rbm(Gaussian(n_real, field=torch.zeros(n_real, dtype=torch.float64)), hidden, centers)
        real = in_coordinates(independent, table.deviation.unsqueeze(1) * lower, table.mean)
        weights[table.real] = real.weights[0]
        columns, hidden = real.layers[0], real.layers[1]
        assert isinstance(columns, Gaussian)
        first = 0
        for index, block in enumerate(blocks):
            if type(block) is Gaussian:
                some = slice(first, first + block.n)
                blocks[index] = Gaussian(block.n, columns.field[some], columns.precision[some])
                first = some.stop
    for block, place, field in zip(mixture.blocks, mixture.places, fields, strict=True):
        weights[place : place + math.prod(block.state_shape), n_real:] = field.T
    visible = Mixed(blocks) if len(blocks) > 1 or type(blocks[0]) is not Gaussian else blocks[0]
    return rbm(visible, hidden, weights)


def standardized_log_density(mixture: Mixture, table: Table, x: Tensor) -> Tensor:  # (N, n) -> (N,)
    """Log-density of the observed cells of rows in the units of the data, shape (N,)."""
    u = x.double().clone()
    u[:, table.real] = (u[:, table.real] - table.mean) / table.deviation
    seen = (~u[:, table.real].isnan()).double()
    return mixture.log_joint(u).logsumexp(1) - seen @ table.deviation.log()
