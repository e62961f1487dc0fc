"""What the paper's text says, held against the tables: a verdict for each claim, and the numbers behind it."""

import csv
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce import checks, deep_training, denoising, free_energy_bands, receptive_fields
from tapmachine.apps.reproduce import likelihood_estimates as estimates
from tapmachine.apps.reproduce import training_likelihood as likelihood
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY_100, BINARY_500, BINARY_MODELS, DEEP_MODELS, REAL_MODELS, Model
from tapmachine.data.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What the paper's text says, with a verdict on each claim"
WIDTH = 60  # of a column of the picture, in letters
WIDTHS = {False: [0.33, 0.12, 0.55], True: [0.2, 0.1, 0.3, 0.1, 0.3]}


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return [*likelihood.measured(lab), *free_energy_bands.measured(lab), *estimates.measured(lab)]


def needed(lab: Lab) -> list[Model]:
    """All that the figures need which it looks at."""
    looked_at = (likelihood, receptive_fields, free_energy_bands, denoising, estimates, deep_training)
    wanted = [model for figure in looked_at for model in figure.needed(lab) if lab.includes(model)]
    return [] if lab.knows("claims") else wanted


class Claim(NamedTuple):
    """How a claim is checked, and the models that this needs."""

    check: Callable[[Lab], checks.Finding]
    models: tuple[Model, ...] = ()


CLAIMS = {
    "the log-likelihood tapers near epoch 20": Claim(checks.tapers),
    "the free energy first rises, then falls": Claim(checks.rises_then_falls),
    "the number of solutions starts at 1 and grows": Claim(checks.number_grows),
    "less than 10 % unique solutions with 100 hidden units": Claim(checks.few_unique, (BINARY_100,)),
    "two bands of free energy on binary-MNIST at all epochs": Claim(checks.two_bands, (BINARY_100,)),
    "high and low free energies are not random in space": Claim(checks.ordered_in_space, (BINARY_100,)),
    "solutions cluster similar data": Claim(checks.clusters, (BINARY_100,)),
    "localization grows with the number of hidden units": Claim(checks.localizes, BINARY_MODELS),
    "TAP beats the pointwise estimate at every p with up to 100 hidden units": Claim(
        checks.beats_pointwise, BINARY_MODELS
    ),
    "TAP mirrors 1-NN near p = 1/2 with up to 100 hidden units": Claim(checks.mirrors_neighbors, BINARY_MODELS),
    "500 hidden units are over-trained": Claim(checks.overtrains, BINARY_MODELS),
    "AIS, pseudo-likelihood and TAP rise together": Claim(checks.rise_together, (BINARY_500,)),
    "adaptive TAP trains as TAP does, and worse with 3 iterations": Claim(checks.adaptive_alike),
    "a sweep of adaptive TAP takes a thousand times as long": Claim(checks.adaptive_costs),
    "real-MNIST learns strokes": Claim(checks.strokes, REAL_MODELS),
    "the log-likelihood of deep machines rises": Claim(checks.deep_rises, DEEP_MODELS),
}


def table(lab: Lab) -> list[Row]:
    """A row for each claim; with those of another folder beside them, if there is one."""

    def make() -> list[Row]:
        rows: list[Row] = []
        for text, claim in CLAIMS.items():
            at_hand = all(lab.includes(model) for model in claim.models)
            verdict, numbers = claim.check(lab) if at_hand else checks.judge([], "")
            rows.append({"claim": text, "verdict": verdict, "numbers": numbers})
        return rows

    return _beside(lab, lab.table("claims", make))


def _beside(lab: Lab, rows: list[Row]) -> list[Row]:
    if lab.beside is None:
        return rows
    path = lab.beside / "claims.csv"
    if not path.is_file():
        raise RunError(f"{lab.beside}: has no claims.csv; make it with tapmachine reproduce claims --out {lab.beside}")
    with path.open(newline="") as file:
        others = {row["claim"]: row for row in csv.DictReader(file)}
    both: list[Row] = [
        {
            **row,
            **{f"{name}_beside": others.get(str(row["claim"]), {}).get(name, "") for name in ("verdict", "numbers")},
        }
        for row in rows
    ]
    return lab.table("claims-beside", lambda: both)


def draw(lab: Lab) -> "Figure":
    """The table, as a picture."""
    import textwrap

    rows = table(lab)
    width = WIDTH if lab.beside is None else WIDTH // 2
    cells = [[textwrap.fill(str(cell), width) for cell in row.values()] for row in rows]
    lines = [max(cell.count("\n") + 1 for cell in row) for row in cells]
    figure = new_figure(13, 0.19 * sum(lines) + 0.6)
    ax = figure.subplots()
    ax.set_axis_off()
    drawn = ax.table(
        cells, colLabels=list(rows[0]), loc="center", cellLoc="left", colWidths=WIDTHS[lab.beside is not None]
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_height((lines[row - 1] if row else 1) / (sum(lines) + 2))
    return figure
