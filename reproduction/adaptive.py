"""Training with TAP and with adaptive TAP, and the cost per sweep of each scheme [fig:adatap].

Adaptive TAP is run twice: as printed in the paper, and with the iteration and the gradient of this package. All
training runs start from the same machine, which was trained with TAP until it began to learn. Before that point, all
methods give the same results.
"""

import time
from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from reproduction.drawing import TAP_COLOR, numbers
from reproduction.lab import Lab, Row
from reproduction.models import BINARY, Model
from reproduction.printed import PrintedAdaptiveTAP
from reproduction.style import BLUE, GREEN, PAGE, panel_title, shared_legend, styled
from tapmachine.accelerator.replay import Replay
from tapmachine.beliefs import Moments
from tapmachine.display.figures import new_figure
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.solver import TAP, AdaptiveTAP, Scheme
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.training import Monitor, TAPObjective, Trainer, momentum_sgd
from tapmachine.units import Binary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP and adaptive TAP: pseudo-likelihood over training, and time per sweep"
SWEEPS = (3, 10, 100)
DAMPING = 0.5
SCHEMES: dict[str, Scheme] = {
    "TAP": TAP("explicit", DAMPING),
    "adaTAP as printed": PrintedAdaptiveTAP(DAMPING),
    "adaTAP": AdaptiveTAP(DAMPING),
}
STYLES: dict[str, dict[str, Any]] = {
    "TAP": {"color": TAP_COLOR, "marker": "o"},
    "adaTAP as printed": {"color": BLUE, "marker": "s", "ls": "--", "mfc": "w"},
    "adaTAP": {"color": GREEN, "marker": "^", "ls": ":"},
}
BATCHES = (1, 10, 100, 200)  # numbers of particles
SCORED, N_VISIBLE = 500, 100  # numbers of rows and units used for the pseudo-likelihood


class Plan(NamedTuple):
    """Sizes of the comparison.

    Attributes:
        n_images: Number of training images.
        n_hidden: Number of hidden units.
        n_particles: Number of solutions per training step.
        warm_up: Number of epochs with TAP before the comparison.
        epochs: Maximum number of epochs per training run in the comparison.
        learning_rate: Learning rate of all training runs.
        seconds: Time limit per training run, because adaptive TAP with 100 sweeps would take hours.
    """

    n_images: int
    n_hidden: int
    n_particles: int
    warm_up: int
    epochs: int
    learning_rate: float
    seconds: float


FULL = Plan(1000, 500, 20, 10, 30, 0.02, 25.0)
QUICK = Plan(300, 16, 20, 120, 3, 0.1, 1.0)


def needed(lab: Lab) -> list[Model]:
    """Return an empty list: no models are trained before drawing."""
    return []


def plan(lab: Lab) -> Plan:
    """Return the sizes of the comparison, which are smaller in quick runs."""
    return QUICK if lab.quick else FULL


def _machine(lab: Lab, n_visible: int) -> BoltzmannMachine:
    generator = torch.Generator().manual_seed(lab.seed)
    return rbm(Binary(n_visible), Binary(plan(lab).n_hidden), generator=generator).to(lab.device)


def table(lab: Lab) -> list[Row]:
    """Return the pseudo-log-likelihood after each epoch, by scheme and number of sweeps."""
    keys = [f"{name}-{n_sweeps}" for name in SCHEMES for n_sweeps in SWEEPS]
    started: list[BoltzmannMachine] = []

    def make(key: str) -> Iterable[Row]:
        x = lab.rows(BINARY)[0][: plan(lab).n_images]
        if not started:
            started.append(_warmed_up(lab, x))
        name, _, n_sweeps = key.rpartition("-")
        lab.say(f"training by {name} with {n_sweeps} sweeps")
        yield from _training(lab, x, deepcopy(started[0]), name, int(n_sweeps))

    return lab.parts("adatap", keys, make)


def _trainer(
    lab: Lab, machine: BoltzmannMachine, x: Tensor, epochs: int, scheme: Scheme, n_sweeps: int, warm: bool
) -> Trainer:
    own = plan(lab)
    return Trainer(
        machine,
        x,
        epochs=epochs,
        batch_size=100,
        objective=TAPObjective(n_particles=own.n_particles, n_sweeps=n_sweeps, scheme=scheme, merged=False),
        optimizer=momentum_sgd(machine, own.learning_rate, weight_decay=0.001),
        centered=False,
        compile=False,
        warm_start=warm,
        seed=lab.seed,
        monitor=Monitor(n_starts=0),
    )


def _warmed_up(lab: Lab, x: Tensor) -> BoltzmannMachine:
    machine = _machine(lab, x.shape[1])
    trainer = _trainer(lab, machine, x, plan(lab).warm_up, SCHEMES["TAP"], 10, warm=False)
    while not trainer.is_over:
        trainer.epoch()
    return machine


def _training(lab: Lab, x: Tensor, machine: BoltzmannMachine, name: str, n_sweeps: int) -> Iterable[Row]:
    own = plan(lab)
    trainer = _trainer(lab, machine, x, own.epochs, SCHEMES[name], n_sweeps, warm=True)
    spent = 0.0
    while True:
        scored = pseudo_log_likelihood(machine, x[:SCORED], min(N_VISIBLE, x.shape[1]), seed=lab.seed)
        yield {
            "scheme": name,
            "sweeps": n_sweeps,
            "epoch": trainer.finished,
            "pseudo_log_likelihood": float(scored.mean),
            "seconds": round(spent, 2),
        }
        if spent >= own.seconds or trainer.is_over:
            return
        begun = time.perf_counter()
        trainer.epoch()
        spent += time.perf_counter() - begun


@torch.no_grad()
def times(lab: Lab) -> list[Row]:
    """Return the time of one sweep in milliseconds, by scheme and number of particles."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[0]
        machine = _machine(lab, x.shape[1])
        machine.weights[0].mul_(30)
        largest = 200 if lab.device == "cuda" or lab.quick else 10  # a matrix inversion takes 0.25 s on one core
        for size in (size for size in BATCHES if size <= largest):
            for name, scheme in SCHEMES.items():
                milliseconds = 1e3 * _seconds_a_sweep(machine, x[:size], scheme)
                device = f"{lab.device}, {torch.get_num_threads()} threads" if lab.device == "cpu" else lab.device
                yield {"scheme": name, "particles": size, "milliseconds": round(milliseconds, 4), "device": device}

    return lab.table("adatap-times", make)


def _seconds_a_sweep(machine: BoltzmannMachine, x: Tensor, scheme: Scheme, at_least: float = 0.2) -> float:
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


def prepare(lab: Lab) -> None:
    """Train all machines. Times are measured later, when the figure is drawn and no other processes are running."""
    table(lab)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    rows, timed = table(lab), times(lab)
    figure = new_figure(PAGE, 2.4)
    axes = list(figure.subplots(1, 1 + len(SWEEPS)))
    styles = {name: style for name, style in STYLES.items() if any(row["scheme"] == name for row in rows)}
    for ax, letter, n_sweeps in zip(axes, "abc", SWEEPS, strict=False):
        for name, style in styles.items():
            own = [row for row in rows if row["scheme"] == name and row["sweeps"] == n_sweeps]
            ax.plot(*numbers(own, "epoch", "pseudo_log_likelihood"), label=name, **style)
        ax.sharey(axes[0])
        ax.tick_params(labelleft=ax is axes[0])
        panel_title(ax, letter, f"{n_sweeps} sweeps per step")
        ax.set_xlabel("epoch after the start")
    axes[0].set_ylabel("pseudo-log-likelihood (nats)")
    for name, style in styles.items():
        own = [row for row in timed if row["scheme"] == name]
        axes[-1].loglog(*numbers(own, "particles", "milliseconds"), **style)
    panel_title(axes[-1], "d", "cost")
    axes[-1].set(xlabel="particles", ylabel="time per sweep (ms)")
    shared_legend(figure, axes)
    return figure
