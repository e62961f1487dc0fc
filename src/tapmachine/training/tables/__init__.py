"""Initialization for tables: exact maximum likelihood of a small machine.

Columns of tables differ in scale and are correlated, many of them strongly; rows form clusters and have heavy tails. In
the original coordinates the problem is so ill-conditioned that gradient descent is slow. The machine is therefore
initialized in whitened coordinates y, where the covariance is the identity, in four steps:

1. The covariance is shrunk toward its diagonal; cross-validation determines by how much.
2. A mixture of Gaussians with a shared covariance is fitted by expectation maximization: a machine with one categorical
   hidden unit, each state of which moves the mean of the visible units. Cross-validation determines the number of
   clusters. The coordinates are then changed so that the covariance of the clusters is the identity.
3. A few spike-and-slab hidden units are fitted with ln Z summed over all sets of active units. With weights w_j, the
   visible units have the precision matrix q + Σ_j w_j w_jᵀ if all units are inactive, and an active unit removes its
   term, so that Z is finite for all weights. Cross-validation, with the whitening inside, determines when to stop.
4. The coordinates are changed again, so that this precision matrix is the identity.

Tables with gaps, weights or columns of several types use only the first two steps, in which the clusters are latent
classes that change the distributions of all columns (`classes.py`, `columns.py`). Their number, the shrinkage and the
width of the covariance are chosen by cross-validation (`selection.py`).
"""

from typing import NamedTuple

from torch import Tensor

from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.tables.classes import Table
from tapmachine.training.tables.clusters import Clusters, Columns, best_n_clusters, best_shrinkage
from tapmachine.training.tables.columns import fit_table, machine_of_classes
from tapmachine.training.tables.slabs import Slabs, best_n_steps
from tapmachine.units import Gaussian, Units

MOST_SLABS = 8  # fitted hidden units; the sum has 2^8 terms
CLUSTERS = (2, 3, 4, 6, 8)  # numbers of clusters to choose from, besides 1
FEW_ROWS = 20  # with fewer, the start is a Gaussian
MOST_ROWS = 20_000  # for the covariance
FITTED_ROWS = 1000  # for the clusters and the slabs


class TableStart(NamedTuple):
    """A machine for real-valued rows x = shift + transform·z, whose visible units z have mean 0 and variance 1.

    Attributes:
        machine: `Gaussian` visible and `SpikeSlab` hidden units, with a `Categorical` one for clusters; in float64.
            For tables with gaps, weights or columns of several types: the machine in the units of the data.
        transform: (n, n); None if the machine is in the units of the data.
        shift: (n,).
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
        x: Rows of real numbers on any scale; columns may be constant or collinear. NaN marks missing values; rows
            without any value are ignored. The q components of a category are one-hot, or all missing.
        n_hidden: Number of hidden units, including one per cluster. At most 8 of the others are fitted; the remaining
            ones have zero weights.
        seed: Random seed of the initial weights, the clusters and the folds.
        weights: Weight of each row (default: 1); a row of weight 2 counts as two rows.
        units: Visible units of the columns, such as `Mixed([Gaussian(3), Binary(2)])` (default: `Gaussian`).

    Raises:
        ValueError: If all values of a column are missing.

    Example:
        >>> import torch
        >>> from tapmachine.training.tables import start_for_table
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
