"""Free energies of all solutions over training, and their number [fig:fedist]."""

from collections.abc import Iterable

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import COLUMN, PAGE, figure, included, nearest, panel_title, shared_legend
from reproduction.lab import Lab, Row, table
from reproduction.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from reproduction.solutions import measure_solutions
from reproduction.statistics import density_curve
from tapmachine.analysis.landscape.figures import free_energies
from tapmachine.display.figures import new_figure

MODELS = (BINARY_100, REAL_100, FACES_256)
SLICES = (5, 20, 50, 100, 500)  # epochs whose distribution is shown
MOST_BINS = 50  # maximum number of bins of a histogram
FEW = 20  # maximum number of solutions that is too small for a density
# Two conventions for F: −ln of the sum of exp(Σ bx + Σ ch + Σ xWh), or of the same sum with normalized priors.
PAPERS, OURS = "unnormalized_free_energy", "free_energy"
CONVENTIONS = {PAPERS: "not normalized", OURS: "normalized"}
Bands = dict[int, tuple[Tensor, Tensor]]


def by_epoch(lab: Lab, model: Model, column: str = PAPERS) -> Bands:
    """Return F of all solutions at each epoch, and the number of starts that converge to each solution."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in measure_solutions(lab, model).solutions:
        found.setdefault(int(row["epoch"]), []).append((float(row[column]), float(row["starts"])))
    tensors = {epoch: torch.tensor(rows, dtype=torch.float64) for epoch, rows in found.items()}
    return {epoch: (both[:, 0], both[:, 1].long()) for epoch, both in tensors.items()}


@table("fedist")
def bands(lab: Lab) -> Iterable[Row]:
    """Return, for each epoch, the number of solutions, the mean F in both conventions, and the range and bands of F."""
    for model in included(lab, MODELS):
        numbers = {row["epoch"]: row for row in measure_solutions(lab, model).likelihood}
        for epoch, (values, _) in by_epoch(lab, model, OURS).items():
            own = numbers[epoch]
            yield {
                "data": model.data,
                "epoch": epoch,
                "solutions": len(values),
                "unnormalized_mean": float(values.mean()) - float(own["prior_log_normalizer"]),
                "mean": float(values.mean()),
                "lowest": float(values.min()),
                "highest": float(values.max()),
                "bands": own["bands"],
                "bands_by_starts": own["bands_by_starts"],
            }


@figure("fedist", MODELS)
def draw(lab: Lab) -> Drawing:
    """Free energies of TAP solutions over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL."""
    bands(lab)
    found = {m: {name: by_epoch(lab, m, name) for name in CONVENTIONS} for m in included(lab, MODELS)}
    first = {model: tables[PAPERS] for model, tables in found.items()}
    spread = {m: [e for e in nearest(list(own), SLICES) if _is_spread(own[e][0])] for m, own in first.items()}
    ratios = [1.7] * len(CONVENTIONS) + [1.05] * max(map(len, spread.values()))
    drawing = new_figure(max(PAGE / 3 * len(found), COLUMN), sum(ratios) + 0.4)
    grid = drawing.add_gridspec(len(ratios), len(found), height_ratios=ratios)
    axes = []
    for number, (model, tables) in enumerate(found.items()):
        for line, (name, own) in enumerate(tables.items()):
            ax = drawing.add_subplot(grid[line, number])
            free_energies(ax, list(own), [values for values, _ in own.values()], legend=False)
            ax.set_ylabel(f"$F$ (nats),\npriors {CONVENTIONS[name]}" if number == 0 else "")
            if number < len(found) - 1:
                ax.figure.axes[-1].set_ylabel("")  # label of the second vertical axis
            ax.set_xlabel("epoch" if name == OURS else "")
            if line == 0:
                panel_title(ax, LETTERS[model.data], f"{model.data}, $N_h$ = {lab.model(model).hidden[0]}")
            axes.append(ax)
        for row, epoch in enumerate(spread[model]):
            ax = drawing.add_subplot(grid[len(CONVENTIONS) + row, number])
            _slice(ax, epoch, *first[model][epoch])
            ax.set_xlabel("$F$ (nats)" if row == len(spread[model]) - 1 else "")
            ax.set_ylabel("density\n(1/nat)" if number == 0 else "")
            axes.append(ax)
    drawing.align_ylabels()
    shared_legend(drawing, axes)
    return drawing


def _slice(ax: Axes, epoch: int, values: Tensor, counts: Tensor) -> None:
    """Draw the distribution at one epoch, on a separate scale because F varies more between epochs than within one."""
    by_start = values.repeat_interleave(counts)
    ax.plot(*density_curve(values), color="C0", label="distribution of solutions")
    ax.hist(values.numpy(), min(MOST_BINS, len(values)), density=True, alpha=0.4, color="C0")
    ax.hist(by_start.numpy(), MOST_BINS, density=True, histtype="step", color="C3", lw=0.9)
    ax.plot([], [], color="C3", lw=0.9, label="distribution, weighted by starts")
    ax.set_title(f"epoch {epoch}, {len(values)} solutions", loc="right", y=0.98)


def _is_spread(values: Tensor) -> bool:
    """Return whether there are enough solutions with different F for a density."""
    return len(values) > FEW and float(values.max() - values.min()) > 1e-6
