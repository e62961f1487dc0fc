"""Measurements of landscape properties that the paper describes qualitatively. This figure is not in the paper."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from reproduction.bands import by_epoch
from reproduction.figure import PAGE, column, curve, figure, nearest, panel_title, where
from reproduction.lab import Lab, Row, table
from reproduction.models import BINARY_100
from reproduction.solutions import MAX_SWEEPS, measure_solutions
from reproduction.statistics import at_temperature, complexity, effective_number
from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.display.figures import new_figure

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
                "effective": effective_number(found.counts) if len(found) else 0.0,
                "not_converged": found.n_not_converged,
                "lowest": float(found.free_energy[0]) / sum(machine.sizes) if len(found) else "",
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
def draw(lab: Lab) -> Drawing:
    """Landscape of binary-MNIST in numbers: solutions, basins and digits, overlaps, temperature, complexity."""
    rows = measure_solutions(lab, BINARY_100).likelihood
    drawing = new_figure(PAGE, 6.6)
    axes = list(drawing.subplots(3, 3).flat)
    _lines(axes[0], rows, COUNTED)
    axes[0].set(yscale="log" if max(column(rows, "solutions")) > 10 else "linear", ylabel="number of solutions")
    fractions = [_fractions(row) for row in rows]
    _lines(axes[1], fractions, {"ours": "this procedure", "printed": "printed iteration"}, ("C0", "C3"))
    axes[1].set(ylabel="starts that converge", ylim=(0, 1.05))
    _lines(axes[2], rows, {"purity": "purity", "adjusted_rand_index": "ARI"})
    axes[2].set(ylabel="agreement with digits", ylim=(0, 1.05))
    _lines(axes[3], [row for row in rows if row.get("morans_i") == row.get("morans_i")], {"morans_i": ""})  # not NaN
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


def _fractions(row: Row) -> Row:
    starts, not_converged, printed = (float(row[n]) for n in ("starts", "not_converged", "printed_converged"))
    return {"epoch": row["epoch"], "ours": 1 - not_converged / starts, "printed": printed / starts}


def _lines(
    ax: Axes, rows: list[Row], names: Mapping[str, str], colors: Sequence[str] = ("C0", "C1", "C2", "C3")
) -> None:
    """Draw columns of a table against the epoch."""
    for (name, label), color in zip(names.items(), colors, strict=False):
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
