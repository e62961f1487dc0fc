"""TAP and adaptive TAP in training, and what a sweep of either costs [fig:adatap].

Adaptive TAP is trained twice: as the paper prints it, and with the iteration and the gradient of this package. All
trainings begin at the same machine, which TAP has trained until learning is under way: before that every method does
the same.
"""

import time
from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.replay import Replay
from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, Model
from tapmachine.beliefs import Moments
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.solver import TAP, AdaptiveTAP, PrintedAdaptiveTAP, Scheme
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.training import Monitor, TAPObjective, Trainer, paper_sgd
from tapmachine.units import Binary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP and adaptive TAP: pseudo-likelihood over training, and seconds a sweep"
SWEEPS = (3, 10, 100)
DAMPING = 0.5
SCHEMES: dict[str, Scheme] = {
    "TAP": TAP("explicit", DAMPING),
    "adaTAP as printed": PrintedAdaptiveTAP(DAMPING),
    "adaTAP": AdaptiveTAP(DAMPING),
}
BATCHES = (1, 10, 100, 200)
SCORED, N_VISIBLE = 500, 100  # rows and units of the pseudo-likelihood


class Plan(NamedTuple):
    """Sizes of the comparison: images, hidden units, solutions of a step, epochs by TAP before it, and in it."""

    n_images: int
    n_hidden: int
    n_particles: int
    warm_up: int
    epochs: int
    learning_rate: float
    seconds: float  # after which a training ends: with 100 sweeps adaptive TAP would take hours


FULL = Plan(1000, 500, 20, 10, 30, 0.02, 25.0)
QUICK = Plan(300, 16, 20, 120, 3, 0.1, 1.0)


def needed(lab: Lab) -> list[Model]:
    """None: its machines are trained here."""
    return []


def plan(lab: Lab) -> Plan:
    """The sizes of this folder's comparison."""
    return QUICK if lab.quick else FULL


def _machine(lab: Lab, n_visible: int) -> BoltzmannMachine:
    generator = torch.Generator().manual_seed(lab.seed)
    return rbm(Binary(n_visible), Binary(plan(lab).n_hidden), generator=generator).to(lab.device)


def table(lab: Lab) -> list[Row]:
    """The pseudo-likelihood after each epoch, by scheme and sweeps."""
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
        optimizer=paper_sgd(machine, own.learning_rate, weight_decay=0.001),
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
    """Milliseconds of one sweep, by scheme and number of particles."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[0]
        machine = _machine(lab, x.shape[1])
        machine.weights[0].mul_(30)
        largest = 200 if lab.device == "cuda" or lab.quick else 10  # an inverse takes a quarter of a second on a core
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
        float(residual[0])  # waits for a GPU
        spent = time.perf_counter() - begun
    return spent / (n_steps * process.sweeps_per_step)


def prepare(lab: Lab) -> None:
    """Train all machines. Times are measured when the figure is drawn, without other processes at the same time."""
    table(lab)


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    rows, timed = table(lab), times(lab)
    figure = new_figure(10.5, 3.8)
    left, right = figure.subplots(1, 2)
    styles = dict(zip(SCHEMES, ("-", "--s", "o"), strict=True))
    for number, n_sweeps in enumerate(SWEEPS):
        for name, style in styles.items():
            own = [row for row in rows if row["scheme"] == name and row["sweeps"] == n_sweeps]
            epochs, values = ([float(row[key]) for row in own] for key in ("epoch", "pseudo_log_likelihood"))
            left.plot(epochs, values, style, ms=4, mfc="none", color=f"C{number}", label=f"{name}, {n_sweeps}")
    left.set_xlabel("epochs after the common start")
    left.set_ylabel("pseudo-log-likelihood, nats")
    left.legend(fontsize=7, title="scheme, sweeps a step", title_fontsize=7)
    for name in SCHEMES:
        own = [row for row in timed if row["scheme"] == name]
        right.loglog([float(r["particles"]) for r in own], [float(r["milliseconds"]) for r in own], "o-", label=name)
    right.set_xlabel("particles")
    right.set_ylabel("milliseconds a sweep")
    right.legend(fontsize=8)
    return figure
