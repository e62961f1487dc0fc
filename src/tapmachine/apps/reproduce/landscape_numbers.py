"""Numbers for what the paper says of its landscapes by eye; not a figure of the paper."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tapmachine.analysis.landscape.statistics import complexity, solutions_over_temperature
from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.free_energy_bands import by_epoch
from tapmachine.apps.reproduce.lab import Lab, Row, nearest
from tapmachine.apps.reproduce.models import BINARY_100, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, needs_solutions, overlaps_table, starts

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
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """The model, unless all of its numbers are known."""
    known = lab.knows("landscape-temperature") and not needs_solutions(lab, MODEL)
    return [MODEL] if lab.includes(MODEL) and not known else []


def temperatures(lab: Lab) -> list[Row]:
    """The number of solutions at other inverse temperatures, of the whole machine and of the couplings only."""

    def make(kind: str) -> Iterable[Row]:
        machine, rows = lab.machine(MODEL), starts(lab, MODEL)[:TEMPERATURE_STARTS]
        scheme = lab.procedure.scheme()
        for at in solutions_over_temperature(machine, rows, BETAS, scheme, couplings_only=kind == "couplings"):
            yield {"tempered": kind, "starts": len(rows), **at._asdict()}

    return lab.parts("landscape-temperature", ("machine", "couplings"), make)


def complexities(lab: Lab) -> list[Row]:
    """Σ(f) at some epochs."""

    def make() -> Iterable[Row]:
        n_units = lab.rows(MODEL.data)[0].shape[1] + sum(lab.model(MODEL).hidden)
        found = by_epoch(lab, MODEL)
        for epoch in nearest(list(found), SHOWN_EPOCHS):
            if len(found[epoch][0]) > 1:
                for f, sigma in zip(*complexity(found[epoch][0], n_units, N_BINS), strict=True):
                    yield {"epoch": epoch, "free_energy_per_unit": float(f), "complexity": float(sigma)}

    return lab.table("landscape-complexity", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    rows = likelihood_table(lab, MODEL)
    figure = new_figure(14, 6.4)
    axes = list(figure.subplots(2, 4).flat)
    _lines(axes[0], rows, {"solutions": "unique", "populated": "5 of 10,000 starts or more", "effective": "effective"})
    _lines(axes[0], rows, {"printed_solutions": "unique, by the printed iteration"})
    axes[0].set(yscale="log", ylabel="number of solutions")
    _lines(axes[1], rows, {"purity": "purity", "adjusted_rand_index": "adjusted Rand index"})
    axes[1].set_ylabel("agreement of basins and digits")
    _lines(axes[2], rows, {"morans_i": "Moran's I of F"})
    axes[2].set_ylabel("spatial correlation")
    _digits(axes[3], rows)
    _lines(axes[4], [_shares(row) for row in rows], {"converged": "converged", "printed": "by the printed iteration"})
    axes[4].set_ylabel("share of the starts")
    _overlaps(axes[5], overlaps_table(lab, MODEL))
    for kind, label in (("machine", r"$P \propto P_1^\beta$"), ("couplings", r"$W \to \beta W$")):
        own = [row for row in temperatures(lab) if row["tempered"] == kind]
        axes[6].plot([float(r["beta"]) for r in own], [float(r["solutions"]) for r in own], "o-", ms=3, label=label)
    axes[6].set(xlabel="inverse temperature", ylabel="number of solutions")
    found = complexities(lab)
    for epoch in sorted({float(row["epoch"]) for row in found}):
        own = [row for row in found if row["epoch"] == epoch]
        places = [float(r["free_energy_per_unit"]) for r in own]
        axes[7].plot(places, [float(r["complexity"]) for r in own], "o-", ms=3, label=f"epoch {epoch:.0f}")
    axes[7].set(xlabel="free energy per unit, nats", ylabel="complexity")
    for ax in axes:
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=7)
    return figure


def _shares(row: Row) -> Row:
    n_starts = float(row["starts"])
    converged, printed = n_starts - float(row["not_converged"]), float(row["printed_converged"])
    return {"epoch": row["epoch"], "converged": converged / n_starts, "printed": printed / n_starts}


def _lines(ax: "Axes", rows: list[Row], names: dict[str, str]) -> None:
    for name, label in names.items():
        own = [(float(r["epoch"]), float(r[name])) for r in rows if r.get(name, "") not in ("", "nan")]
        own = [point for point in own if point[1] == point[1]]  # not NaN
        if own:
            ax.plot(*zip(*own, strict=True), "o-", ms=3, label=label)
    ax.set_xlabel("epoch")


def _digits(ax: "Axes", rows: list[Row]) -> None:
    """F of the solutions that each digit leads to, less the mean of all digits."""
    rows = [row for row in rows if row.get("free_energy_of_0", "") != ""]
    values = torch.tensor([[float(row[f"free_energy_of_{digit}"]) for digit in range(10)] for row in rows])
    above = values - values.mean(1, keepdim=True)
    for digit in range(10):
        ax.plot([float(row["epoch"]) for row in rows], above[:, digit].tolist(), label=f"{digit}", color=f"C{digit}")
    ax.set(xlabel="epoch", ylabel="F by digit less the mean, nats")


def _overlaps(ax: "Axes", rows: list[Row]) -> None:
    for epoch in nearest(sorted({int(row["epoch"]) for row in rows}), SHOWN_EPOCHS):
        own = [row for row in rows if int(row["epoch"]) == epoch]
        ax.plot([float(r["overlap"]) for r in own], [float(r["of_solutions"]) for r in own], label=f"epoch {epoch}")
    ax.set(xlabel="overlap q of two solutions", ylabel="P(q)", yscale="log")
