"""Claims of the paper, each with a verdict and the numbers on which the verdict is based."""

import csv
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from reproduction import checks, deep_training, denoising, free_energy_bands, receptive_fields
from reproduction import likelihood_estimates as estimates
from reproduction import training_likelihood as likelihood
from reproduction.drawing import GUTTER, text_table, text_width
from reproduction.lab import Lab, Row
from reproduction.models import BINARY_100, BINARY_500, BINARY_MODELS, DEEP_MODELS, REAL_MODELS, Model
from reproduction.style import styled
from tapmachine.data.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Claims of the paper, with a verdict on each"
# Widths of the columns in inches: for a portrait page, and for a landscape page that compares two directories.
WIDTHS = {False: [1.9, 0.9, 4.2], True: [1.7, 0.9, 3.0, 0.9, 3.0]}
HEADER = {
    "claim": "claim",
    "verdict": "verdict",
    "numbers": "measured",
    "verdict_beside": "verdict beside",
    "numbers_beside": "measured beside",
}


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return [*likelihood.measured(lab), *free_energy_bands.measured(lab), *estimates.measured(lab)]


def needed(lab: Lab) -> list[Model]:
    """Return the models to train for the figures to which the claims refer."""
    figures = (likelihood, receptive_fields, free_energy_bands, denoising, estimates, deep_training)
    wanted = [model for figure in figures for model in figure.needed(lab) if lab.includes(model)]
    return [] if lab.knows("claims") else wanted


class Claim(NamedTuple):
    """Check of a claim, and the models required for the check."""

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
    """Return the verdict on each claim, next to that of the lab's other directory if there is one."""

    def make() -> list[Row]:
        rows: list[Row] = []
        for text, claim in CLAIMS.items():
            available = all(lab.includes(model) for model in claim.models)
            verdict, numbers = claim.check(lab) if available else checks.judge([], "")
            rows.append({"claim": text, "verdict": verdict, "numbers": numbers})
        return rows

    return _beside(lab, lab.table("claims", make))


def _beside(lab: Lab, rows: list[Row]) -> list[Row]:
    if lab.beside is None:
        return rows
    path = lab.beside / "claims.csv"
    if not path.is_file():
        raise RunError(f"{path}: file not found; create it with: python -m reproduction claims --out {lab.beside}")
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


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the table."""
    rows = table(lab)
    widths = WIDTHS[lab.beside is not None]
    cells = [[_wrapped(str(cell), width) for cell, width in zip(row.values(), widths, strict=True)] for row in rows]
    return text_table([HEADER[name] for name in rows[0]], cells, widths)


def _wrapped(text: str, width: float) -> str:
    """Break text into lines that fit into a column of `width` inches."""
    lines: list[list[str]] = [[]]
    room = width - GUTTER
    for word in text.split():
        if lines[-1] and sum(map(text_width, (*lines[-1], word))) + text_width(" ") * len(lines[-1]) > room:
            lines.append([])
        lines[-1].append(word)
    return "\n".join(" ".join(words) for words in lines)
