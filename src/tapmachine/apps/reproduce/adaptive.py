"""TAP and adaptive TAP in training, and what a sweep of either costs [fig:adatap]."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.accelerator.replay import Replay
from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, Model
from tapmachine.beliefs import Moments
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.solver import TAP, AdaptiveTAP, Scheme
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.training import Monitor, TAPObjective, Trainer, paper_sgd
from tapmachine.units import Binary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP and adaptive TAP: pseudo-likelihood over training, and seconds a sweep"
N_IMAGES, N_HIDDEN, BATCH, EPOCHS = 5000, 500, 100, 50
SWEEPS = (3, 10, 100)
DAMPING = 0.5
SECONDS = {"TAP": 60.0, "adaTAP": 45.0}  # after which a training ends: adaptive TAP would take hours
QUICK_SECONDS, QUICK_EPOCHS = 3.0, 4
BATCHES = (10, 20, 50, 100, 200)
SCORED, N_VISIBLE = 500, 100  # rows and units of the pseudo-likelihood


def needed(lab: Lab) -> list[Model]:
    """None: its machines are trained here."""
    return []


def _scheme(name: str) -> Scheme:
    return TAP("explicit", DAMPING) if name == "TAP" else AdaptiveTAP(DAMPING)


def _machine(lab: Lab, n_visible: int) -> BoltzmannMachine:
    generator = torch.Generator().manual_seed(lab.seed)
    return rbm(Binary(n_visible), Binary(32 if lab.quick else N_HIDDEN), generator=generator).to(lab.device)


def table(lab: Lab) -> list[Row]:
    """The pseudo-likelihood after each epoch, by scheme and sweeps."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[0][: 500 if lab.quick else N_IMAGES]
        for name, limit in SECONDS.items():
            for n_sweeps in SWEEPS:
                lab.say(f"training by {name} with {n_sweeps} sweeps")
                yield from _training(lab, x, name, n_sweeps, QUICK_SECONDS if lab.quick else limit)

    return lab.table("adatap", make)


def _training(lab: Lab, x: Tensor, name: str, n_sweeps: int, limit: float) -> Iterable[Row]:
    machine = _machine(lab, x.shape[1])
    trainer = Trainer(
        machine,
        x,
        epochs=QUICK_EPOCHS if lab.quick else EPOCHS,
        batch_size=BATCH,
        objective=TAPObjective(n_sweeps=n_sweeps, scheme=_scheme(name), merged=False),
        optimizer=paper_sgd(machine, 0.05 if lab.quick else 0.001, weight_decay=0.001),
        centered=False,
        seed=lab.seed,
        monitor=Monitor(n_starts=0),
    )
    spent = 0.0
    while spent < limit and trainer.finished < trainer.epochs:
        begun = time.perf_counter()
        trainer.epoch()
        spent += time.perf_counter() - begun
        scored = pseudo_log_likelihood(machine, x[:SCORED], min(N_VISIBLE, x.shape[1]))
        yield {
            "scheme": name,
            "sweeps": n_sweeps,
            "epoch": trainer.finished,
            "pseudo_log_likelihood": float(scored.mean),
            "seconds": round(spent, 2),
        }


@torch.no_grad()
def times(lab: Lab) -> list[Row]:
    """Milliseconds of one sweep, by scheme and number of particles."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[0]
        machine = _machine(lab, x.shape[1])
        machine.weights[0].mul_(30)
        for size in BATCHES[:3] if lab.quick else BATCHES:
            for name in SECONDS:
                milliseconds = 1e3 * _seconds_a_sweep(machine, x[:size], _scheme(name))
                yield {"scheme": name, "particles": size, "milliseconds": round(milliseconds, 4)}

    return lab.table("adatap-times", make)


def _seconds_a_sweep(machine: BoltzmannMachine, x: Tensor, scheme: Scheme, at_least: float = 0.3) -> float:
    process, layers = scheme.bind(machine), list(machine.layers)
    on_cuda = machine.device.type == "cuda"
    if on_cuda:
        process.root_steps = ROOT_STEPS
    state = process.begin(layers, [Moments(x, torch.zeros_like(x)), *[None] * (len(layers) - 1)])
    captured = Replay(lambda own: process.step(layers, own), state, 1) if on_cuda and process.can_be_captured else None
    n_steps, spent = 0, 0.0
    begun = time.perf_counter()
    while spent < at_least:
        for _ in range(5):
            state, residual = captured(state) if captured else process.step(layers, state)
        n_steps += 5
        float(residual[0])  # waits for a GPU
        spent = time.perf_counter() - begun
    return spent / (n_steps * process.sweeps_per_step)


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    rows, timed = table(lab), times(lab)
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    for number, n_sweeps in enumerate(SWEEPS):
        for name, style in (("TAP", "-"), ("adaTAP", "o")):
            own = [row for row in rows if row["scheme"] == name and row["sweeps"] == n_sweeps]
            epochs, values = ([float(row[key]) for row in own] for key in ("epoch", "pseudo_log_likelihood"))
            left.plot(epochs, values, style, ms=4, mfc="none", color=f"C{number}", label=f"{name}, {n_sweeps} sweeps")
    left.set_xlabel("epoch")
    left.set_ylabel("pseudo-log-likelihood, nats")
    left.legend(fontsize=8)
    for name in SECONDS:
        own = [row for row in timed if row["scheme"] == name]
        right.loglog([float(r["particles"]) for r in own], [float(r["milliseconds"]) for r in own], "o-", label=name)
    right.set_xlabel("particles")
    right.set_ylabel("milliseconds a sweep")
    right.legend()
    return figure
