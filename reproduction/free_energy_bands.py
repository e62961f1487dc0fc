"""Free energies of all solutions over training, and their number [fig:fedist]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reproduction.lab import Lab, Row, nearest
from reproduction.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from reproduction.solutions import likelihood_table, needs_solutions, solutions_table
from reproduction.statistics import density_curve
from reproduction.style import BLUE, COLUMN, ORANGE, PAGE, panel_title, shared_legend, styled
from tapmachine.analysis.landscape.figures import free_energies
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Free energies of TAP solutions over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
MODELS = (BINARY_100, REAL_100, FACES_256)
SLICES = (5, 20, 50, 100, 500)  # epochs whose distribution is shown
MOST_BINS = 50  # maximum number of bins of a histogram
FEW = 20  # maximum number of solutions that is too small for a density
# Two conventions for F: −ln of the sum of exp(Σ bx + Σ ch + Σ xWh), or of the same sum with normalized priors.
PAPERS, OURS = "unnormalized_free_energy", "free_energy"
CONVENTIONS = {PAPERS: "not normalized", OURS: "normalized"}
SOLUTIONS_COLOR, STARTS_COLOR = BLUE, ORANGE
Bands = dict[int, tuple[Tensor, Tensor]]


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the models whose solutions have not been measured."""
    return [model for model in _models(lab) if needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in MODELS if lab.includes(model)]


def by_epoch(lab: Lab, model: Model, column: str = PAPERS) -> Bands:
    """Return F of all solutions at each epoch, and the number of starts that converge to each solution."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in solutions_table(lab, model):
        found.setdefault(int(row["epoch"]), []).append((float(row[column]), float(row["starts"])))
    tensors = {epoch: torch.tensor(rows, dtype=torch.float64) for epoch, rows in found.items()}
    return {epoch: (both[:, 0], both[:, 1].long()) for epoch, both in tensors.items()}


def table(lab: Lab) -> list[Row]:
    """Return, for each epoch, the number of solutions, the mean F in both conventions, and the range and bands of F."""

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


@styled
def draw(lab: Lab) -> "Figure":
    """Draw free energies over training in both conventions, and their distribution at some epochs."""
    lab.require(MODELS)
    table(lab)
    found = {model: {name: by_epoch(lab, model, name) for name in CONVENTIONS} for model in _models(lab)}
    return drawn_bands({model: (lab.model(model).hidden[0], tables) for model, tables in found.items()})


def drawn_bands(found: dict[Model, tuple[int, dict[str, Bands]]]) -> "Figure":
    """Draw the figure from each model's number of hidden units and free energies in one or both conventions."""
    first = {model: next(iter(tables.values())) for model, (_, tables) in found.items()}
    spread = {m: [e for e in nearest(list(own), SLICES) if _is_spread(own[e][0])] for m, own in first.items()}
    n_conventions = max((len(tables) for _, tables in found.values()), default=0)
    n_slices = max(map(len, spread.values()), default=0)
    figure = new_figure(max(PAGE / 3 * len(found), COLUMN), 1.7 * n_conventions + 1.05 * n_slices + 0.4)
    ratios = [1.7] * n_conventions + [1.05] * n_slices
    grid = figure.add_gridspec(len(ratios) or 1, len(found) or 1, height_ratios=ratios or None)
    axes = []
    for number, (model, (n_hidden, tables)) in enumerate(found.items()):
        for line, (name, own) in enumerate(tables.items()):
            ax = figure.add_subplot(grid[line, number])
            free_energies(ax, list(own), [values for values, _ in own.values()], legend=False)
            ax.set_ylabel(f"$F$ (nats),\npriors {CONVENTIONS[name]}" if number == 0 else "")
            if number < len(found) - 1:
                ax.figure.axes[-1].set_ylabel("")  # label of the second vertical axis
            ax.set_xlabel("epoch" if line == n_conventions - 1 else "")
            if line == 0:
                panel_title(ax, LETTERS[model.data], f"{model.data}, $N_h$ = {n_hidden}")
            axes.append(ax)
        for row, epoch in enumerate(spread[model]):
            ax = figure.add_subplot(grid[n_conventions + row, number])
            _slice(ax, epoch, *first[model][epoch])
            ax.set_xlabel("$F$ (nats)" if row == n_slices - 1 else "")
            ax.set_ylabel("density\n(1/nat)" if number == 0 else "")
            if row == len(spread[model]) - 1 < n_slices - 1:  # the space below is empty
                place = ax.annotate("$F$ (nats)", (0.5, 0), (0, -14), "axes fraction", "offset points")
                place.set(ha="center", va="top", in_layout=False)
            axes.append(ax)
    figure.align_ylabels()
    shared_legend(figure, axes)
    return figure


def _slice(ax: "Axes", epoch: int, values: Tensor, counts: Tensor) -> None:
    """Draw the distribution at one epoch, on a separate scale because F varies more between epochs than within one."""
    by_start = values.repeat_interleave(counts)
    ax.plot(*density_curve(values), color=SOLUTIONS_COLOR, label="distribution of solutions")
    ax.hist(values.numpy(), min(MOST_BINS, len(values)), density=True, alpha=0.4, color=SOLUTIONS_COLOR)
    ax.hist(by_start.numpy(), MOST_BINS, density=True, histtype="step", color=STARTS_COLOR, lw=0.9)
    ax.plot([], [], color=STARTS_COLOR, lw=0.9, label="distribution, weighted by starts")
    ax.set(xlabel="free energy (nats)", ylabel="density (1/nat)")
    ax.set_title(f"epoch {epoch}, {len(values)} solutions", loc="right", y=0.98)


def _is_spread(values: Tensor) -> bool:
    """Return whether there are enough solutions with different F for a density."""
    return len(values) > FEW and float(values.max() - values.min()) > 1e-6
