"""Free energies of all solutions over training [fig:fedist], and numbers for what the paper judges by eye."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import COLUMN, PAGE, figure, included, nearest, panel_title, shared_legend
from reproduction.lab import Lab, Row, column, curve, table, where
from reproduction.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from reproduction.solutions import MAX_SWEEPS, measure_solutions
from reproduction.statistics import at_temperature, complexity, density_curve
from tapmachine.analysis.landscape.figures import free_energies
from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.display.figures import new_figure

MODELS = (BINARY_100, REAL_100, FACES_256)
SLICES = (5, 20, 50, 100, 500)  # epochs whose distribution is shown
MOST_BINS = 50  # maximum number of bins of a histogram
FEW = 20  # maximum number of different values of F that is too small for a density
# Two conventions for F: −ln of the sum of exp(Σ bx + Σ ch + Σ xWh), or of the same sum with normalized priors.
PAPERS, OURS = "unnormalized_free_energy", "free_energy"
CONVENTIONS = {PAPERS: "not normalized", OURS: "normalized"}
Bands = dict[int, tuple[Tensor, Tensor]]
COLORS = ("C0", "C1", "C2", "C3")
BETAS = (0.25, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
TEMPERATURE_STARTS = 1000
SHOWN_EPOCHS = (2, 5, 20, 50, 100)
N_BINS = 20
TEMPERED = {"machine": r"$P \propto P_1^\beta$", "couplings": r"$W \to \beta W$"}
COUNTED = {
    "solutions": "this procedure",
    "populated": "populated",
    "effective": "effective",
    "printed_solutions": "printed iteration",
}


def by_epoch(lab: Lab, model: Model, name: str = PAPERS) -> Bands:
    """Return F of all solutions at each epoch, and the number of starts that converge to each solution."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in measure_solutions(lab, model).solutions:
        found.setdefault(int(row["epoch"]), []).append((float(row[name]), float(row["starts"])))
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
                "bands": own["bands"],
                "bands_by_starts": own["bands_by_starts"],
            }


@figure("fedist", MODELS)
def draw_bands(lab: Lab) -> Drawing:
    """Free energies of TAP solutions over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL."""
    bands(lab)
    found = {m: {name: by_epoch(lab, m, name) for name in CONVENTIONS} for m in included(lab, MODELS)}
    first = {model: tables[PAPERS] for model, tables in found.items()}
    spread = {m: [e for e in nearest(list(own), SLICES) if len(own[e][0].unique()) > FEW] for m, own in first.items()}
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


@table("landscape-temperature")
def temperatures(lab: Lab) -> Iterable[Row]:
    """Return the number of solutions by inverse temperature, applied to the machine or to its couplings only."""
    machine, starts = lab.machine(BINARY_100), lab.starts(BINARY_100)[:TEMPERATURE_STARTS]
    for kind in TEMPERED:
        for beta in BETAS:
            tempered = at_temperature(machine, beta, couplings_only=kind == "couplings")
            scheme = lab.procedure.scheme()
            found = find_solutions(tempered, starts, scheme, stability=False, max_sweeps=MAX_SWEEPS)
            yield {
                "tempered": kind,
                "starts": len(starts),
                "beta": beta,
                "solutions": len(found),
                "not_converged": found.n_not_converged,
            }


@table("landscape-complexity")
def complexities(lab: Lab) -> Iterable[Row]:
    """Return the complexity Σ(f) at selected epochs."""
    n_units = lab.rows(BINARY_100.data)[0].shape[1] + sum(lab.model(BINARY_100).hidden)
    found = by_epoch(lab, BINARY_100)
    for epoch in nearest(list(found), SHOWN_EPOCHS):
        if len(found[epoch][0]) > 1:
            for f, sigma in zip(*complexity(found[epoch][0], n_units, N_BINS), strict=True):
                yield {"epoch": epoch, "free_energy_per_unit": float(f), "complexity": float(sigma)}


@figure("landscape", [BINARY_100])
def draw_numbers(lab: Lab) -> Drawing:
    """Landscape of binary-MNIST in numbers: solutions, basins and digits, overlaps, temperature, complexity."""
    rows = measure_solutions(lab, BINARY_100).likelihood
    drawing = new_figure(PAGE, 6.6)
    axes = list(drawing.subplots(3, 3).flat)
    _lines(axes[0], rows, COUNTED)
    axes[0].set(yscale="log" if max(column(rows, "solutions")) > 10 else "linear", ylabel="number of solutions")
    _lines(axes[1], rows, {"converged": "this procedure", "printed_converged": "printed iteration"}, "C0 C3")
    axes[1].set(ylabel="starts that converge", ylim=(0, 1.05 * float(rows[0]["starts"])))
    _lines(axes[2], rows, {"purity": "purity", "adjusted_rand_index": "ARI"})
    axes[2].set(ylabel="agreement with digits", ylim=(0, 1.05))
    _lines(axes[3], rows, {"morans_i": ""})
    axes[3].set(ylabel="Moran's $I$ of $F$", xlim=axes[0].get_xlim())
    _digits(axes[4], rows)
    for kind, label in TEMPERED.items():
        axes[5].plot(*curve(where(temperatures(lab), tempered=kind), "beta", "solutions"), "o-", label=label)
    axes[5].set(xlabel="inverse temperature $\\beta$", ylabel="number of solutions")
    overlap_rows, complexity_rows = measure_solutions(lab, BINARY_100).overlaps, complexities(lab)
    epochs = nearest(sorted({int(row["epoch"]) for row in overlap_rows}), SHOWN_EPOCHS)
    for epoch, color in zip(epochs, colormaps["viridis"](torch.linspace(0, 0.88, len(epochs)).numpy()), strict=True):
        style: dict[str, Any] = {"color": color, "label": f"epoch {epoch}", "ms": 2, "lw": 0.9}
        q, density = curve(where(overlap_rows, epoch=epoch), "overlap", "of_solutions")
        axes[6].plot(q, [value or float("nan") for value in density], "o-", **style)
        own = where(complexity_rows, epoch=epoch)
        axes[7].plot(*curve(own, "free_energy_per_unit", "complexity"), "o-", **style)
    axes[6].set(xlabel="overlap $q$ of two solutions", ylabel="density $P(q)$", yscale="log")
    axes[6].yaxis.set_minor_formatter(lambda value, place: "")
    axes[7].set(xlabel="free energy per unit $f$ (nats)", ylabel="complexity $\\Sigma(f)$ (nats)")
    axes[7].locator_params(axis="x", nbins=3)
    axes[8].set_axis_off()
    for ax, title, height in ((axes[0], "(a) and (b)", 1.1), (axes[6], "(g) and (h)", 0.55)):
        place: dict[str, Any] = {"loc": "upper left", "alignment": "left", "bbox_to_anchor": (0, height)}
        axes[8].add_artist(axes[8].legend(*ax.get_legend_handles_labels(), title=title, **place))
    for ax, letter in zip(axes[:8], "abcdefgh", strict=True):
        panel_title(ax, letter)
    for ax in (axes[2], axes[5]):  # legends above the axes, where no data are covered
        ax.legend(loc="lower right", bbox_to_anchor=(1.02, 0.99), ncols=2, handlelength=1)
    return drawing


def _lines(ax: Axes, rows: list[Row], names: Mapping[str, str], colors: str = "C0 C1 C2 C3") -> None:
    """Draw columns of a table against the epoch."""
    for (name, label), color in zip(names.items(), colors.split(), strict=False):
        points = curve(rows, "epoch", name)
        ax.plot(*points, "o-", color=color, label=label)
        if not points[0]:
            ax.text(0.5, 0.5, "too few solutions", ha="center", va="center", transform=ax.transAxes)
            ax.set(xticks=[], yticks=[])
    ax.set_xlabel("epoch")


def _digits(ax: Axes, rows: list[Row]) -> None:
    """Draw a heat map of the mean F of the solutions reached from each digit, minus the mean over digits."""
    rows = [row for row in rows if row.get("free_energy_of_0", "") != ""]
    values = torch.tensor([[float(row[f"free_energy_of_{digit}"]) for digit in range(10)] for row in rows])
    above = (values - values.mean(1, keepdim=True)).T.numpy()
    largest = abs(above).max()
    drawn = ax.imshow(above, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    ax.figure.colorbar(drawn, ax=ax, label="$F$ minus mean (nats)").ax.yaxis.labelpad = 5
    every = max(1, len(rows) // 4)
    ax.set_xticks(range(0, len(rows), every), [f"{float(row['epoch']):.0f}" for row in rows[::every]])
    ax.set_yticks(range(0, 10, 3))
    ax.set(xlabel="epoch", ylabel="digit")
