"""Training with TAP and with adaptive TAP, and the cost per sweep of each scheme [fig:adatap].

Adaptive TAP is run twice: as printed in the paper, and with the iteration and the gradient of this package. All
training runs start from the same machine, which was trained with TAP until it began to learn. Before that point, all
methods give the same results.
"""

import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import curve, figure, panels, shared_legend, where
from reproduction.lab import PARTS, Lab, Row, table
from reproduction.models import BINARY
from reproduction.printed import PrintedAdaptiveTAP
from tapmachine.accelerator.replay import Replay
from tapmachine.beliefs import Moments
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.solver import TAP, AdaptiveTAP, Scheme
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.training import Monitor, TAPObjective, Trainer, momentum_sgd
from tapmachine.units import Binary

SWEEPS = (3, 10, 100)
SCHEMES: dict[str, Scheme] = {
    "TAP": TAP("explicit", 0.5),
    "adaTAP as printed": PrintedAdaptiveTAP(0.5),
    "adaTAP": AdaptiveTAP(0.5),
}
STYLES: dict[str, dict[str, Any]] = {
    "TAP": {"color": "C1", "marker": "o"},
    "adaTAP as printed": {"color": "C0", "marker": "s", "ls": "--", "mfc": "w"},
    "adaTAP": {"color": "C2", "marker": "^", "ls": ":"},
}
BATCHES = (1, 10, 100, 200)  # numbers of particles
SCORED, N_VISIBLE = 500, 100  # numbers of rows and units used for the pseudo-likelihood


@dataclass(frozen=True)
class Plan:
    """Sizes of the comparison; adaptive TAP with 100 sweeps would take hours without a limit."""

    n_images: int = 1000
    n_hidden: int = 500
    n_particles: int = 20
    warm_up: int = 10  # epochs with TAP before the comparison
    epochs: int = 30  # maximum per training run
    learning_rate: float = 0.02
    seconds: float = 25.0  # limit per training run


PLANS = {False: Plan(), True: Plan(300, 16, 20, 120, 3, 0.1, 1.0)}  # keys: whether the run is quick


def _machine(lab: Lab, n_visible: int) -> BoltzmannMachine:
    generator = torch.Generator().manual_seed(lab.seed)
    return rbm(Binary(n_visible), Binary(PLANS[lab.quick].n_hidden), generator=generator).to(lab.device)


def _trainer(lab: Lab, machine: BoltzmannMachine, x: Tensor, scheme: str, n_sweeps: int, warm: bool) -> Trainer:
    plan = PLANS[lab.quick]
    return Trainer(
        machine,
        x,
        epochs=plan.epochs if warm else plan.warm_up,
        batch_size=100,
        objective=TAPObjective(n_particles=plan.n_particles, n_sweeps=n_sweeps, scheme=SCHEMES[scheme], merged=False),
        optimizer=momentum_sgd(machine, plan.learning_rate, weight_decay=0.001),
        centered=False,
        compile=False,
        warm_start=warm,
        seed=lab.seed,
        monitor=Monitor(n_starts=0),
    )


@table("adatap")
def trainings(lab: Lab) -> Iterable[Row]:
    """Return the pseudo-log-likelihood after each epoch, by scheme and number of sweeps."""
    x = lab.rows(BINARY)[0][: PLANS[lab.quick].n_images]
    started = _machine(lab, x.shape[1])
    trainer = _trainer(lab, started, x, "TAP", 10, warm=False)
    while not trainer.is_over:
        trainer.epoch()
    for scheme in SCHEMES:
        for n_sweeps in SWEEPS:
            rows = _training(lab, x, deepcopy(started), scheme, n_sweeps)
            yield from lab.table(f"{PARTS}adatap-{scheme}-{n_sweeps}", lambda rows=rows: rows)  # type: ignore[misc]


def _training(lab: Lab, x: Tensor, machine: BoltzmannMachine, scheme: str, n_sweeps: int) -> Iterable[Row]:
    lab.say(f"training by {scheme} with {n_sweeps} sweeps")
    trainer, spent = _trainer(lab, machine, x, scheme, n_sweeps, warm=True), 0.0
    while True:
        scored = pseudo_log_likelihood(machine, x[:SCORED], min(N_VISIBLE, x.shape[1]), seed=lab.seed)
        row: Row = {"scheme": scheme, "sweeps": n_sweeps, "epoch": trainer.finished}
        yield row | {"pseudo_log_likelihood": float(scored.mean), "seconds": round(spent, 2)}
        if spent >= PLANS[lab.quick].seconds or trainer.is_over:
            return
        begun = time.perf_counter()
        trainer.epoch()
        spent += time.perf_counter() - begun


@table("adatap-times")
@torch.no_grad()
def times(lab: Lab) -> Iterable[Row]:
    """Return the time of one sweep in milliseconds, by scheme and number of particles."""
    x = lab.rows(BINARY)[0]
    machine = _machine(lab, x.shape[1])
    machine.weights[0].mul_(30)
    largest = 200 if lab.device == "cuda" or lab.quick else 10  # a matrix inversion takes 0.25 s on one core
    device = lab.device if lab.device == "cuda" else f"{lab.device}, {torch.get_num_threads()} threads"
    for size in (size for size in BATCHES if size <= largest):
        for name, scheme in SCHEMES.items():
            milliseconds = round(1e3 * seconds_a_sweep(machine, x[:size], scheme), 4)
            yield {"scheme": name, "particles": size, "milliseconds": milliseconds, "device": device}


def seconds_a_sweep(machine: BoltzmannMachine, x: Tensor, scheme: Scheme, at_least: float = 0.2) -> float:
    """Measure the time of one sweep over a batch of particles, for at least some seconds."""
    process, layers = scheme.bind(machine), list(machine.layers)
    on_cuda = machine.device.type == "cuda"
    if on_cuda:
        process.root_steps = ROOT_STEPS
    state = process.begin(layers, [Moments(x, torch.zeros_like(x)), *[None] * (len(layers) - 1)])
    captured = Replay(lambda own: process.step(layers, own), state, 1) if on_cuda and process.can_be_captured else None
    n_steps, spent = 0, 0.0
    begun = time.perf_counter()
    while spent < at_least:
        for _ in range(2):
            state, residual = captured(state) if captured else process.step(layers, state)
        n_steps += 2
        float(residual[0])  # waits for the GPU
        spent = time.perf_counter() - begun
    return spent / (n_steps * process.sweeps_per_step)


@figure("adatap")
def draw(lab: Lab) -> Drawing:
    """TAP and adaptive TAP: pseudo-likelihood over training, and time per sweep."""
    rows, timed = trainings(lab), times(lab)
    drawing, axes = panels([*(f"{n_sweeps} sweeps per step" for n_sweeps in SWEEPS), "cost"])
    for ax, n_sweeps in zip(axes, SWEEPS, strict=False):
        for name, style in STYLES.items():
            own = where(rows, scheme=name, sweeps=n_sweeps)
            ax.plot(*curve(own, "epoch", "pseudo_log_likelihood"), label=name, **style)
        ax.sharey(axes[0])
        ax.tick_params(labelleft=ax is axes[0])
        ax.set_xlabel("epoch after the start")
    axes[0].set_ylabel("pseudo-log-likelihood (nats)")
    for name, style in STYLES.items():
        axes[-1].loglog(*curve(where(timed, scheme=name), "particles", "milliseconds"), **style)
    axes[-1].set(xlabel="particles", ylabel="time per sweep (ms)")
    shared_legend(drawing, axes)
    return drawing
