"""Measurements of landscape properties that the paper describes qualitatively. This figure is not in the paper."""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import torch

from reproduction.drawing import numbers
from reproduction.free_energy_bands import by_epoch
from reproduction.lab import Lab, Row, nearest
from reproduction.models import BINARY_100, Model
from reproduction.solutions import likelihood_table, needs_solutions, overlaps_table, starts
from reproduction.statistics import complexity, solutions_over_temperature
from reproduction.style import PAGE, PALETTE, panel_title, sequence, styled
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Numbers for the landscape of binary-MNIST: solutions, basins and digits, overlaps, temperature, complexity"
MODEL = BINARY_100
BETAS = (0.25, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
TEMPERATURE_STARTS = 1000
SHOWN_EPOCHS = (2, 5, 20, 50, 100)
N_BINS = 20


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the model to train, or an empty list if all tables exist."""
    known = lab.knows("landscape-temperature") and not needs_solutions(lab, MODEL)
    return [MODEL] if lab.includes(MODEL) and not known else []


def temperatures(lab: Lab) -> list[Row]:
    """Return the number of solutions by inverse temperature, applied to the machine or to its couplings only."""

    def make(kind: str) -> Iterable[Row]:
        machine, rows = lab.machine(MODEL), starts(lab, MODEL)[:TEMPERATURE_STARTS]
        scheme = lab.procedure.scheme()
        for at in solutions_over_temperature(machine, rows, BETAS, scheme, couplings_only=kind == "couplings"):
            yield {"tempered": kind, "starts": len(rows), **at._asdict()}

    return lab.parts("landscape-temperature", ("machine", "couplings"), make)


def complexities(lab: Lab) -> list[Row]:
    """Return the complexity Σ(f) at selected epochs."""

    def make() -> Iterable[Row]:
        n_units = lab.rows(MODEL.data)[0].shape[1] + sum(lab.model(MODEL).hidden)
        found = by_epoch(lab, MODEL)
        for epoch in nearest(list(found), SHOWN_EPOCHS):
            if len(found[epoch][0]) > 1:
                for f, sigma in zip(*complexity(found[epoch][0], n_units, N_BINS), strict=True):
                    yield {"epoch": epoch, "free_energy_per_unit": float(f), "complexity": float(sigma)}

    return lab.table("landscape-complexity", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    rows = likelihood_table(lab, MODEL)
    figure = new_figure(PAGE, 6.6)
    axes = list(figure.subplots(3, 3).flat)
    names = {
        "solutions": "this procedure",
        "populated": "populated",
        "effective": "effective",
        "printed_solutions": "printed iteration",
    }
    _lines(axes[0], rows, names)
    axes[0].set(yscale="log" if max(numbers(rows, "solutions")[0]) > 10 else "linear", ylabel="number of solutions")
    shares = [_shares(row) for row in rows]
    _lines(axes[1], shares, {"converged": "this procedure", "printed": "printed iteration"}, (PALETTE[0], PALETTE[3]))
    axes[1].set(ylabel="starts that converge", ylim=(0, 1.05))
    _lines(axes[2], rows, {"purity": "purity", "adjusted_rand_index": "ARI"})
    axes[2].set(ylabel="agreement with digits", ylim=(0, 1.05))
    _lines(axes[3], rows, {"morans_i": ""})
    axes[3].set(ylabel="Moran's $I$ of $F$", xlim=axes[0].get_xlim())
    _digits(axes[4], rows)
    for kind, label in (("machine", r"$P \propto P_1^\beta$"), ("couplings", r"$W \to \beta W$")):
        own = [row for row in temperatures(lab) if row["tempered"] == kind]
        axes[5].plot(*numbers(own, "beta", "solutions"), "o-", label=label)
    axes[5].set(xlabel="inverse temperature $\\beta$", ylabel="number of solutions")
    overlap_rows, complexity_rows = overlaps_table(lab, MODEL), complexities(lab)
    epochs = nearest(sorted({int(row["epoch"]) for row in overlap_rows}), SHOWN_EPOCHS)
    for epoch, color in zip(epochs, sequence(len(epochs)), strict=True):
        style: dict[str, Any] = {"color": color, "label": f"epoch {epoch}"}
        own = [row for row in overlap_rows if int(row["epoch"]) == epoch]
        q, density = numbers(own, "overlap", "of_solutions")
        axes[6].plot(q, [value or float("nan") for value in density], "o-", ms=2, lw=0.9, **style)
        own = [row for row in complexity_rows if int(row["epoch"]) == epoch]
        axes[7].plot(*numbers(own, "free_energy_per_unit", "complexity"), "o-", ms=2, lw=0.9, **style)
    axes[6].set(xlabel="overlap $q$ of two solutions", ylabel="density $P(q)$", yscale="log")
    axes[7].set(xlabel="free energy per unit $f$ (nats)", ylabel="complexity $\\Sigma(f)$ (nats)")
    axes[7].locator_params(axis="x", nbins=3)
    axes[6].yaxis.set_minor_formatter(lambda value, place: "")
    axes[8].set_axis_off()
    style = {"loc": "upper left", "alignment": "left"}
    upper = axes[8].legend(*axes[0].get_legend_handles_labels(), title="(a) and (b)", bbox_to_anchor=(0, 1.1), **style)
    axes[8].legend(*axes[6].get_legend_handles_labels(), title="(g) and (h)", bbox_to_anchor=(0, 0.55), **style)
    axes[8].add_artist(upper)  # the second legend would replace the first
    for ax, letter in zip(axes[:8], "abcdefgh", strict=True):
        panel_title(ax, letter)
    for ax in (axes[2], axes[5]):  # legends above the axes, where no data are covered
        ax.legend(loc="lower right", bbox_to_anchor=(1.02, 0.99), ncols=2, handlelength=1)
    return figure


def _shares(row: Row) -> Row:
    n_starts = float(row["starts"])
    converged, printed = n_starts - float(row["not_converged"]), float(row["printed_converged"])
    return {"epoch": row["epoch"], "converged": converged / n_starts, "printed": printed / n_starts}


def _lines(ax: "Axes", rows: list[Row], names: dict[str, str], colors: Sequence[str] = PALETTE) -> None:
    """Draw columns of a table against the epoch, omitting missing values and NaN."""
    for (name, label), color in zip(names.items(), colors, strict=False):
        points = [(float(r["epoch"]), float(r[name])) for r in rows if r.get(name, "") != ""]
        points = [point for point in points if not isnan(point[1])]
        ax.plot([epoch for epoch, _ in points], [value for _, value in points], "o-", color=color, label=label)
        if not points:
            ax.text(0.5, 0.5, "too few solutions", ha="center", va="center", transform=ax.transAxes)
            ax.set(xticks=[], yticks=[])
    ax.set_xlabel("epoch")


def _digits(ax: "Axes", rows: list[Row]) -> None:
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
