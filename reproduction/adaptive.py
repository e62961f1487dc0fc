"""Training with TAP and with adaptive TAP, and the cost per sweep of each scheme [fig:adatap].

All training runs start from the same machine, which was trained with TAP until it began to learn. Before that point,
all methods give the same results.
"""

import time
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import figure, panels, shared_legend
from reproduction.lab import PARTS, Lab, Row, curve, table, where
from reproduction.models import BINARY
from tapmachine.accelerator.replay import Replay
from tapmachine.beliefs import Moments, Tilt
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.solver import TAP, AdaptiveTAP, Scheme
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.solver.schemes.process import Outcome, Process, State, from_below
from tapmachine.training import Monitor, TAPObjective, Trainer, momentum_sgd
from tapmachine.units import Binary, Units

LEAST_VARIANCE = 1e-6  # for smaller variances c, rounding errors of 1/c would dominate A₁ = 1/C_ii − A₂


class PrintedState(NamedTuple):
    """Fields B₁ and precisions A₁ of all units, shape (K, N), and the moments of both layers."""

    field: Tensor
    precision: Tensor
    moments: tuple[Moments, ...]


class PrintedProcess(Process):
    """Iteration of [alg:rbmInfada] for two layers, with the fields H as part of the priors."""

    can_be_captured = False

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.machine, self.damping, self.sizes = machine, damping, machine.sizes
        self.weights = [machine.weights[0].detach()]
        n, W = self.sizes[0], self.weights[0]
        self.J = W.new_zeros(sum(self.sizes), sum(self.sizes))
        self.J[:n, n:], self.J[n:, :n] = W, W.T

    def values_per_particle(self) -> int:
        return int(4 * self.J.numel())

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        (a, _), (b, _) = from_below(layers, self.weights, moments)
        field = torch.cat((b @ self.weights[0].T, a @ self.weights[0]), 1)
        return self._at(layers, field, torch.zeros_like(field))

    def step(self, layers: list[Units], state: PrintedState) -> tuple[State, Tensor]:
        (field, precision, residual), d = self._interaction(state), self.damping
        field, precision = d * state.field + (1 - d) * field, d * state.precision + (1 - d) * precision
        return self._at(layers, field, precision), residual

    def moments(self, state: PrintedState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: PrintedState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), self._tilts(state.field, state.precision)

    def outcome(self, layers: list[Units], state: PrintedState) -> Outcome:
        tilts = self._tilts(state.field, state.precision)
        value = TAP().free_energy(self.machine, state.moments, tilts)
        return Outcome(tilts, self._interaction(state)[2], value)

    def unnormalizable(self, state: PrintedState) -> Tensor:
        return torch.zeros_like(state.field[:, 0], dtype=torch.bool)

    def _tilts(self, field: Tensor, precision: Tensor) -> list[Tilt]:
        return [Tilt(*parts) for parts in zip(field.split(self.sizes, 1), precision.split(self.sizes, 1), strict=True)]

    def _at(self, layers: list[Units], field: Tensor, precision: Tensor) -> PrintedState:
        """Apply the prior updates a₁ = f_a(B₁, A₁) and c₁ = f_c(B₁, A₁)."""
        tilts = self._tilts(field, precision)
        return PrintedState(field, precision, tuple(u.moments(tilt) for u, tilt in zip(layers, tilts, strict=True)))

    def _interaction(self, state: PrintedState) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the interaction updates; return B₁, A₁ and the mean squared difference between a₁, c₁ and a₂, c₂."""
        a, c = (torch.cat(parts, 1) for parts in zip(*state.moments, strict=True))
        c = c.clamp(min=LEAST_VARIANCE)
        A2, B2 = 1 / c - state.precision, a / c - state.field
        C = torch.linalg.inv_ex(torch.diag_embed(A2) - self.J).inverse  # (K, N, N)
        a2, c2 = (C @ B2.unsqueeze(-1)).squeeze(-1), C.diagonal(dim1=1, dim2=2)
        residual = (a2 - a).square().mean(1) + (c2 - c).square().mean(1)
        return a2 / c2 - B2, 1 / c2 - A2, residual


@final
class PrintedAdaptiveTAP(Scheme):
    """Adaptive TAP exactly as printed in the paper, for RBMs whose units have finite moments under every tilt.

    Each sweep inverts the full matrix diag(A₂) − J for every particle and updates means and precisions together. As in
    the paper, the gradient is TAP's expression −(aa' + Wcc') at these moments, so the free energy is that of TAP.
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.5) -> None:
        self.damping = damping

    def __repr__(self) -> str:
        return f"PrintedAdaptiveTAP(damping={self.damping})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return PrintedProcess(machine, self.damping)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return TAP().free_energy(machine, moments, tilts)


SWEEPS = (3, 10, 100)
SCHEMES = {"TAP": TAP("explicit", 0.5), "adaTAP as printed": PrintedAdaptiveTAP(0.5), "adaTAP": AdaptiveTAP(0.5)}
STYLES = {"TAP": "o-C1", "adaTAP as printed": "s--C0", "adaTAP": "^:C2"}
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
            ax.plot(*curve(own, "epoch", "pseudo_log_likelihood"), style, label=name)
        ax.sharey(axes[0])
        ax.tick_params(labelleft=ax is axes[0])
        ax.set_xlabel("epoch after the start")
    axes[0].set_ylabel("pseudo-log-likelihood (nats)")
    for name, style in STYLES.items():
        axes[-1].loglog(*curve(where(timed, scheme=name), "particles", "milliseconds"), style)
    axes[-1].set(xlabel="particles", ylabel="time per sweep (ms)")
    shared_legend(drawing, axes)
    return drawing
