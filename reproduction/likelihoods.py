"""Log-likelihoods during training: by TAP [fig:bmnist-tapLL], of deep machines [fig:dbmtraining], and by three
estimators [fig:tap-ais-psuedo].
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import figure, hidden_color, included, panel, panels, shared_legend
from reproduction.lab import Lab, Row, curve, table, where
from reproduction.models import BINARY, BINARY_500, DEEP_MODELS, TABLE
from reproduction.solutions import measure_solutions
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood import ais_log_likelihood, ais_log_partition, pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine

LAST_EPOCH = 100  # last epoch shown in the first figure
N_RUNS, N_VISIBLE, SCORED = 100, 100, 1000  # AIS runs; units and rows used for the pseudo-likelihood
PER_UNIT = "tap_log_likelihood_per_unit"
DEEP_LABELS = {PER_UNIT: "training images", f"validation_{PER_UNIT}": "test images"}
DEEP_RECORDED = (*DEEP_LABELS, "tap_log_likelihood", "tap_log_sum_exp", "divergences", "variation_2", "variation_3")
ESTIMATES: dict[str, dict[str, Any]] = {
    "pseudo": {"label": "pseudo-likelihood", "color": "C5", "marker": "^"},
    "tap": {"label": "TAP, average", "color": "C1", "marker": "o"},
    "tap_log_sum_exp": {"label": "TAP, log-sum-exp", "color": "C3", "marker": "s", "ls": "--"},
    "ais": {"label": "AIS", "color": "k", "marker": "D"},
}


def paper_schedule() -> Tensor:  # (14501,), float64
    """Return the paper's 14,500 temperatures [fig:tap-ais-psuedo], after Salakhutdinov and Murray (2008)."""
    parts = [(0, 50_000, 100), (50_000, 90_000, 10), (90_000, 100_000, 1)]
    hundred_thousandths = [value for first, last, step in parts for value in range(first, last, step)]
    return torch.tensor([*hundred_thousandths, 100_000], dtype=torch.float64) / 100_000


@table("bmnist-tapLL")
def by_tap(lab: Lab) -> Iterable[Row]:
    """Return the TAP log-likelihood of each model at each epoch."""
    for model in included(lab, TABLE):
        for row in measure_solutions(lab, model).likelihood:
            yield {"data": model.data, "n_hidden": lab.model(model).hidden[0], **row}


@figure("bmnist-tapLL", TABLE)
def _draw_by_tap(lab: Lab) -> Drawing:
    """TAP log-likelihood per unit over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL."""
    rows = by_tap(lab)
    sets = list(dict.fromkeys(str(row["data"]) for row in rows))
    drawing, axes = panels(sets)
    for ax, data in zip(axes, sets, strict=True):
        for n_hidden in sorted({float(row["n_hidden"]) for row in where(rows, data=data)}):
            own = [row for row in where(rows, data=data, n_hidden=n_hidden) if float(row["epoch"]) <= LAST_EPOCH]
            color = hidden_color(lab, n_hidden)
            epochs, values = map(np.array, curve(own, "epoch", "per_unit"))
            errors, totals = (np.array(curve(own, "epoch", name)[1]) for name in ("standard_error", "log_likelihood"))
            errors = np.abs(errors * values / totals)  # the table has the standard error for all units
            ax.plot(epochs, values, "o-", label=f"$N_h$ = {n_hidden:.0f}", color=color)
            ax.fill_between(epochs, values - errors, values + errors, alpha=0.3, color=color, lw=0)
        ax.set_xlabel("epoch")
    shared_legend(drawing, axes)
    axes[0].set_ylabel("TAP log-likelihood\nper unit (nats)")
    return drawing


@table("dbmtraining")
def of_deep_machines(lab: Lab) -> Iterable[Row]:
    """Return the log-likelihoods of each deep machine at the measured epochs of its joint training."""
    for model in included(lab, DEEP_MODELS):
        before = lab.model(model).pretrain * len(model.hidden)
        for record in lab.run(model).records():
            if record["epoch"] > before and record.get(PER_UNIT) is not None:
                row: Row = {"hidden_layers": len(model.hidden), "epoch": record["epoch"] - before}
                yield row | {name: float(record[name]) for name in DEEP_RECORDED if name in record}


@figure("dbmtraining", DEEP_MODELS)
def _draw_deep_machines(lab: Lab) -> Drawing:
    """TAP log-likelihood per unit of deep machines of two and three hidden layers."""
    drawing, axes = panels(["2 hidden layers", "3 hidden layers"], share_y=True)
    for ax, n_layers in zip(axes, (2, 3), strict=True):
        for (name, label), color in zip(DEEP_LABELS.items(), ("C3", "C0"), strict=True):
            own = where(of_deep_machines(lab), hidden_layers=n_layers)
            ax.plot(*curve(own, "epoch", name), "o-", color=color, label=label)
        ax.set_xlabel("epoch of joint training")
    axes[0].set_ylabel("TAP log-likelihood\nper unit (nats)")
    shared_legend(drawing, axes)
    return drawing


def sampled_estimates(lab: Lab, machine: BoltzmannMachine, x: Tensor, schedule: Tensor | int) -> Row:
    """Return the AIS and pseudo-likelihood estimates of the mean log-likelihood of rows of binary-MNIST."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodWarning)  # the standard error is in the table
        estimate = ais_log_partition(machine, schedule, N_RUNS, data=lab.rows(BINARY)[0], seed=lab.seed)
    pseudo = pseudo_log_likelihood(machine, x[:SCORED], min(N_VISIBLE, x.shape[1]), seed=lab.seed)
    return {
        "ais": float(ais_log_likelihood(machine, x, estimate).mean),
        "ais_sigma": float(estimate.standard_error),
        "pseudo": float(pseudo.mean),
    }


@table("tap-ais-psuedo")
def estimates(lab: Lab) -> Iterable[Row]:
    """Return the estimates of the mean log-likelihood of training rows at each epoch."""
    schedule = 300 if lab.quick else paper_schedule()
    for row in measure_solutions(lab, BINARY_500).likelihood:
        by_tap = {"epoch": row["epoch"], "tap": row["log_likelihood"], "tap_log_sum_exp": row["log_sum_exp"]}
        machine = lab.machine(BINARY_500, int(row["epoch"]))
        yield by_tap | sampled_estimates(lab, machine, lab.starts(BINARY_500), schedule)


@figure("tap-ais-psuedo", [BINARY_500])
def _draw_estimates(lab: Lab) -> Drawing:
    """TAP, AIS and pseudo-likelihood over the training of one machine."""
    drawing, ax = panel(2.7)
    for name, style in ESTIMATES.items():
        ax.plot(*curve(estimates(lab), "epoch", name), **style)
    ax.set(xlabel="epoch", ylabel="log-likelihood (nats)")
    shared_legend(drawing, [ax], columns=2)
    return drawing
