"""TAP, AIS and pseudo-likelihood estimates during one training run [fig:tap-ais-psuedo]."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from reproduction.drawing import EXACT_COLOR, TAP_COLOR, numbers
from reproduction.lab import Lab, Row
from reproduction.models import BINARY, BINARY_500, Model
from reproduction.solutions import likelihood_table, starts
from reproduction.style import COLUMN, ORANGE, SKY, shared_legend, styled
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.display.figures import new_figure
from tapmachine.likelihood import ais_log_likelihood, ais_log_partition, linear_schedule, pseudo_log_likelihood
from tapmachine.likelihood.annealing.schedules import paper_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP, AIS and pseudo-likelihood over the training of one machine"
N_RUNS = 100  # number of AIS runs
N_VISIBLE = 100  # number of units used for the pseudo-likelihood
STYLES: dict[str, dict[str, Any]] = {
    "pseudo": {"label": "pseudo-likelihood", "color": SKY, "marker": "^"},
    "tap": {"label": "TAP, average", "color": TAP_COLOR, "marker": "o"},
    "tap_log_sum_exp": {"label": "TAP, log-sum-exp", "color": ORANGE, "marker": "s", "ls": "--"},
    "ais": {"label": "AIS", "color": EXACT_COLOR, "marker": "D"},
}


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the model to train, or an empty list if the table exists."""
    return [] if lab.knows("tap-ais-psuedo") else [BINARY_500]


def table(lab: Lab) -> list[Row]:
    """Return the estimates of the mean log-likelihood of training rows at each epoch."""

    def make() -> Iterable[Row]:
        by_tap = {row["epoch"]: row for row in likelihood_table(lab, BINARY_500)}
        x = starts(lab, BINARY_500)
        train = lab.rows(BINARY)[0]
        schedule = linear_schedule(300) if lab.quick else paper_schedule()
        for epoch in lab.epochs(BINARY_500):
            machine = lab.machine(BINARY_500, epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LikelihoodWarning)  # the standard error is in the table
                estimate = ais_log_partition(machine, schedule, N_RUNS, data=train, seed=lab.seed)
            pseudo = pseudo_log_likelihood(machine, x[:1000], min(N_VISIBLE, x.shape[1]), seed=lab.seed)
            yield {
                "epoch": epoch,
                "tap": by_tap[epoch]["log_likelihood"],
                "tap_log_sum_exp": by_tap[epoch]["log_sum_exp"],
                "ais": float(ais_log_likelihood(machine, x, estimate).mean),
                "ais_sigma": float(estimate.standard_error),
                "pseudo": float(pseudo.mean),
            }

    return lab.table("tap-ais-psuedo", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    rows = table(lab)
    figure = new_figure(COLUMN, 2.7)
    ax = figure.subplots()
    for name, style in STYLES.items():
        ax.plot(*numbers(rows, "epoch", name), **style)
    ax.set_xlabel("epoch")
    ax.set_ylabel("log-likelihood (nats)")
    shared_legend(figure, [ax], columns=2)
    return figure
