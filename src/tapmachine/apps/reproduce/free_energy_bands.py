"""The free energies of all solutions over training, and how many there are [fig:fedist]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.analysis.landscape.diagnosis import density_curve
from tapmachine.analysis.plots import free_energies, free_energy_histogram, new_figure
from tapmachine.apps.reproduce.lab import Lab, Row, nearest
from tapmachine.apps.reproduce.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, needs_solutions, solutions_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Free energies of TAP solutions over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
MODELS = (BINARY_100, REAL_100, FACES_256)
SLICES = (5, 20, 50, 100, 500)  # epochs
FEW = 20  # solutions, too few for a density
# The two conventions of F: exp(Σ bx + Σ ch + Σ xWh) summed as it is, or with normalized priors.
PAPERS, OURS = "unnormalized_free_energy", "free_energy"


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Models whose solutions are not known yet."""
    return [model for model in _models(lab) if needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in MODELS if lab.includes(model)]


def by_epoch(lab: Lab, model: Model, column: str = PAPERS) -> dict[int, tuple[Tensor, Tensor]]:
    """F of all solutions at each epoch, and the number of starts that lead to each."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in solutions_table(lab, model):
        found.setdefault(int(row["epoch"]), []).append((float(row[column]), float(row["starts"])))
    tensors = {epoch: torch.tensor(rows, dtype=torch.float64) for epoch, rows in found.items()}
    return {epoch: (both[:, 0], both[:, 1].long()) for epoch, both in tensors.items()}


def table(lab: Lab) -> list[Row]:
    """A row for each epoch: number of solutions, their mean F in both conventions, its range, and the bands."""

    def make() -> list[Row]:
        rows: list[Row] = []
        for model in _models(lab):
            numbers = {row["epoch"]: row for row in likelihood_table(lab, model)}
            for epoch, (values, _) in by_epoch(lab, model, OURS).items():
                own = numbers[epoch]
                constant = float(own["prior_log_normalizer"])
                rows.append(
                    {
                        "data": model.data,
                        "epoch": epoch,
                        "solutions": len(values),
                        "unnormalized_mean": float(values.mean()) - constant,
                        "mean": float(values.mean()),
                        "lowest": float(values.min()),
                        "highest": float(values.max()),
                        "bands": own["bands"],
                        "bands_by_starts": own["bands_by_starts"],
                    }
                )
        return rows

    return lab.table("fedist", make)


def draw(lab: Lab) -> "Figure":
    """The figure: F over training in both conventions, and its distribution at some epochs, a panel each."""
    table(lab)
    models = {model: by_epoch(lab, model) for model in _models(lab)}
    dense = {model: [e for e in nearest(list(own), SLICES) if _is_spread(own[e][0])] for model, own in models.items()}
    n_slices = max(map(len, dense.values()), default=0)
    figure = new_figure(4.6 * len(models), 5 + 1.3 * n_slices)
    grid = figure.add_gridspec(2 + n_slices, len(models), height_ratios=[3, 2, *[1.3] * n_slices])
    for number, (model, found) in enumerate(models.items()):
        for line, column in enumerate((PAPERS, OURS)):
            ax = figure.add_subplot(grid[line, number])
            own = found if column == PAPERS else by_epoch(lab, model, OURS)
            free_energies(ax, list(own), [values for values, _ in own.values()])
            ax.set_ylabel("F, priors not normalized" if column == PAPERS else "F, priors normalized")
            if line == 0:
                ax.set_title(f"({LETTERS[model.data]}) {model.data}, {lab.model(model).hidden[0]} hidden units")
        for row, epoch in enumerate(dense[model], 2):
            ax = figure.add_subplot(grid[row, number])
            values, counts = found[epoch]
            # Bands are narrow beside the way that F goes over training, so each epoch has a scale of its own.
            free_energy_histogram(ax, values, density_curve(values))
            by_start = values.repeat_interleave(counts)
            ax.hist(by_start.numpy(), bins=50, density=True, histtype="step", color="tab:orange", lw=1)
            ax.set_ylabel("density", fontsize=8)
            ax.set_title(
                f"epoch {epoch}: {len(values)} solutions; orange: {len(by_start)} starts", fontsize=8, loc="left"
            )
            if row < len(dense[model]) + 1:
                ax.set_xlabel("")
    return figure


def _is_spread(values: Tensor) -> bool:
    """Whether there are enough solutions, of different F, for a density."""
    return len(values) > FEW and float(values.max() - values.min()) > 1e-6
