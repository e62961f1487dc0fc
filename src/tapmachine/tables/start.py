"""Initialization for tables, by maximizing the exact likelihood of a small machine.

The columns of a table differ in scale, and many of them are strongly correlated. Rows form clusters and have heavy
tails. In the original coordinates, the problem is so ill-conditioned that gradient descent is slow. The machine is
therefore initialized in whitened coordinates y, in which the covariance is the identity, in four steps:

1. The covariance is shrunk toward its diagonal, by an amount chosen by cross-validation.
2. A mixture of Gaussians with a shared covariance is fitted by expectation maximization. The mixture is a machine with
   one categorical hidden unit, whose state shifts the mean of the visible units. The number of clusters is chosen by
   cross-validation. The coordinates are then changed so that the covariance of the clusters is the identity.
3. A few spike-and-slab hidden units are fitted with ln Z summed over all sets of active units. With weights w_j, the
   visible units have the precision matrix q + Σ_j w_j w_jᵀ if all hidden units are inactive. An active unit removes its
   term, so that Z is finite for all weights. The number of training steps is chosen by cross-validation, with the
   whitening repeated in each fold.
4. The coordinates are changed again, so that the precision matrix for inactive units is the identity.

Tables with missing values, weights or columns of several types use only the first two steps. For these tables, clusters
are latent classes that change the distributions of all columns (`classes.py`, `columns.py`). The number of classes, the
shrinkage and the width of the covariance are chosen by cross-validation (`selection.py`).
"""

from typing import NamedTuple

from torch import Tensor

from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.tables.class_machine import fit_table, machine_of_classes
from tapmachine.tables.classes import Table
from tapmachine.tables.clusters import Clusters, Columns, best_n_clusters, best_shrinkage
from tapmachine.tables.slabs import Slabs, best_n_steps
from tapmachine.units import Gaussian, Units

MOST_SLABS = 8  # maximum number of fitted hidden units; the sum has 2^8 terms
CLUSTERS = (2, 3, 4, 6, 8)  # numbers of clusters to choose from, besides 1
FEW_ROWS = 20  # with fewer rows, the initial machine is a single Gaussian
MOST_ROWS = 20_000  # maximum number of rows used to estimate the covariance
FITTED_ROWS = 1000  # maximum number of rows used to fit clusters and slabs


class TableStart(NamedTuple):
    """Initial machine for rows x = shift + transform·z, whose visible units z have mean 0 and variance 1.

    Attributes:
        machine: Machine in float64 with `Gaussian` visible units, `SpikeSlab` hidden units, and a `Categorical` hidden
            unit for clusters. For tables with missing values, weights or columns of several types, the machine is in
            the units of the data.
        transform: Transformation matrix, shape (n, n); None if the machine is in the units of the data.
        shift: Offset, shape (n,), or a scalar 0 if the machine is in the units of the data.
        notes: Notes on the data, one line each.
    """

    machine: BoltzmannMachine
    transform: Tensor | None
    shift: Tensor
    notes: list[str]


def start_for_table(
    x: Tensor, n_hidden: int, seed: int = 0, weights: Tensor | None = None, units: Units | None = None
) -> TableStart:  # (N, n)
    """Fit an initial machine to the rows of a table.

    Args:
        x: Rows of real numbers on any scale, shape (N, n). Columns may be constant or collinear. NaN marks missing
            values, and rows without any value are ignored. Categorical columns are one-hot, with NaN in all components
            of a missing value.
        n_hidden: Number of hidden units, including one per cluster. At most 8 of the other units are fitted, and the
            rest have zero weights.
        seed: Random seed for the initial weights, the clusters and the folds (default: 0).
        weights: Row weights, shape (N,); 1 by default. A row of weight 2 counts as two rows.
        units: Visible units of the columns, such as `Mixed([Gaussian(3), Binary(2)])` (default: `Gaussian`).

    Raises:
        ValueError: If all values of a column are missing.

    Example:
        >>> import torch
        >>> from tapmachine.tables.start import start_for_table
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0, 0.01])
        >>> start_for_table(x, 3).machine.summary()
        '3 Gaussian – 3 SpikeSlab'
    """
    x = spaced(x, MOST_ROWS).detach().double().cpu()
    weights = None if weights is None else spaced(weights.unsqueeze(1), MOST_ROWS).flatten()
    is_real = units is None or type(units) is Gaussian
    if not is_real or weights is not None or bool(x.isnan().any()):
        table = Table.of(x, Gaussian(x.shape[1]) if units is None else units, weights)
        mixture, notes = fit_table(table, max(n_hidden, 1), seed)
        return TableStart(machine_of_classes(mixture, table), None, x.new_zeros(()), notes)
    some = spaced(x, FITTED_ROWS)
    shrinkage = best_shrinkage(x, seed)
    columns = Columns.of(x, shrinkage)
    n_clusters, n_steps = 1, 0
    if len(x) >= FEW_ROWS:
        n_clusters = best_n_clusters(some, shrinkage, [k for k in CLUSTERS if k < n_hidden], seed)
        n_slabs = min(n_hidden - (n_clusters if n_clusters > 1 else 0), MOST_SLABS)
        n_steps = best_n_steps(some, shrinkage, n_clusters, n_slabs, seed)
    clusters = Clusters.of(columns, some, n_clusters, seed)
    slabs = Slabs(clusters, n_slabs if n_steps else 0, seed)
    slabs.fit(clusters.whitened(some), n_steps)
    machine, transform, shift = slabs.machine(n_hidden)
    notes = columns.notes(len(x)) + ([f"{n_clusters} clusters"] if n_clusters > 1 else [])
    return TableStart(machine, clusters.transform @ transform, clusters.mean + clusters.transform @ shift, notes)
