"""TAP, AIS and pseudo-likelihood over one training [fig:tap-ais-psuedo]."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, BINARY_500, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, starts
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood import (
    ais_log_likelihood,
    ais_log_partition,
    linear_schedule,
    paper_schedule,
    pseudo_log_likelihood,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP, AIS and pseudo-likelihood over the training of one machine"
N_RUNS = 100
N_VISIBLE = 100  # units of the pseudo-likelihood


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """The model, unless its log-likelihoods are known."""
    return [] if lab.knows("tap-ais-psuedo") else [BINARY_500]


def table(lab: Lab) -> list[Row]:
    """The three estimates of training rows at each epoch."""

    def make() -> Iterable[Row]:
        by_tap = {row["epoch"]: row for row in likelihood_table(lab, BINARY_500)}
        machines, x = lab.machines(BINARY_500), starts(lab, BINARY_500)
        train = lab.rows(BINARY)[0]
        schedule = linear_schedule(300) if lab.quick else paper_schedule()
        for epoch in lab.epochs(BINARY_500):
            machine = machines[epoch]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LikelihoodWarning)  # σ is in the table
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


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    figure = new_figure(5.5, 4)
    ax = figure.subplots()
    epochs = [float(row["epoch"]) for row in rows]
    labels = {"tap": "TAP", "tap_log_sum_exp": "TAP, log-sum-exp", "ais": "AIS", "pseudo": "pseudo-likelihood"}
    for name, label in labels.items():
        ax.plot(epochs, [float(row[name]) for row in rows], "o-", ms=3, label=label)
    ax.set_xlabel("epoch")
    ax.set_ylabel("log-likelihood, nats")
    ax.legend()
    return figure
