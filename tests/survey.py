"""Random machines with one hidden layer, of all unit types, weak to strong couplings: estimates against exact ln Z.

The slow test of 200 machines prints how often annealed importance sampling is right within three of its standard
errors, and by how much TAP is off, for each strength of the couplings.
"""

import itertools
import warnings
from typing import NamedTuple

import numpy as np
import torch
from machine_cases import UNITS, Tensors, draw_weights, rescale

from tapmachine import Tilt, ais_log_partition, exact_log_partition, tap_log_likelihood
from tapmachine.likelihood.exact import can_enumerate
from tapmachine.machine import BoltzmannMachine

STRENGTHS = (0.1, 0.3, 1.0, 2.0, 4.0)  # standard deviation of the weights, times the square root of the mean layer size
PAIRS = [
    (visible, hidden)
    for visible in UNITS
    for hidden in UNITS
    if not {visible, hidden} <= {"Gaussian", "TruncatedGaussian", "GaussBernoulli"}  # one side must be enumerable
]
MOST_STATES = 14  # bits of the side that is enumerated
N_TEMPERATURES = 500


class Result(NamedTuple):
    """One machine: the exact ln Z, and what the estimators say relative to it."""

    kinds: tuple[str, str]
    strength: float
    exact: float
    annealed: float
    annealed_error: float
    tap: float  # NaN where no solution converged
    log_sum_exp: float


def random_machine(number: int) -> tuple[BoltzmannMachine, tuple[str, str], float]:
    random = Tensors(number)
    kinds = PAIRS[(7 * number) % len(PAIRS)]
    strength = STRENGTHS[number % len(STRENGTHS)]
    while True:
        sizes = [int(random.rng.integers(3, 21)) for _ in kinds]
        machine = BoltzmannMachine([UNITS[kind](random, n) for kind, n in zip(kinds, sizes, strict=True)])
        if can_enumerate(machine, MOST_STATES):
            break
    rescale(machine, draw_weights(machine, random), strength / np.mean(sizes) ** 0.5)
    return machine, kinds, strength


def exact_samples(machine: BoltzmannMachine, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Exact samples of all layers of a machine with one hidden layer, one side of which can be enumerated."""
    layers = list(machine.layers)
    finite = min((0, 1), key=lambda layer: np.log(layers[layer].n_states() or [np.inf]).sum())
    other = 1 - finite
    digits = torch.tensor(list(itertools.product(*(range(n) for n in layers[finite].n_states() or []))))
    chain: list[torch.Tensor | None] = [None, None]
    chain[finite] = layers[finite].decode(digits)
    field = machine.field_on(other, chain).detach()
    log_weights = layers[finite].log_prior(chain[finite]).sum(-1) + layers[other].log_partition(Tilt(field, 0.0)).sum(
        -1
    )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(log_weights.softmax(0).detach(), count, replacement=True, generator=generator)
    drawn = [chain[finite][chosen], layers[other].sample(Tilt(field[chosen], 0.0), generator)]
    return drawn if finite == 0 else drawn[::-1]


def examine(number: int) -> Result:
    machine, kinds, strength = random_machine(number)
    exact = float(exact_log_partition(machine))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        annealed = ais_log_partition(machine, N_TEMPERATURES, seed=number)
    units = machine.layers[0]
    x = units.sample(
        Tilt(torch.zeros((50, *units.state_shape), dtype=machine.dtype), 0.0), torch.Generator().manual_seed(number)
    )
    try:
        tap = tap_log_likelihood(machine, x)
        found = [float(tap.log_partition) - exact, float(tap.log_sum_exp.log_partition) - exact]
    except ValueError:
        found = [float("nan")] * 2
    off, error = float(annealed.log_partition) - exact, float(annealed.standard_error)
    return Result(kinds, strength, exact, off, error, *found)


def survey(n_machines: int) -> list[Result]:
    return [examine(number) for number in range(n_machines)]


def covered(results: list[Result]) -> float:
    """The share of machines whose exact ln Z lies within three standard errors of the annealed estimate."""
    return float(np.mean([abs(r.annealed) <= 3 * r.annealed_error + 1e-12 for r in results]))


def table(results: list[Result]) -> str:
    heads = ["strength", "machines", "within 3σ", "median σ", "TAP: median error", "largest"]
    heads += ["log-sum-exp: median error", "largest", "no solution"]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for strength in STRENGTHS:
        own = [r for r in results if r.strength == strength]
        if not own:
            continue
        tap, lse = (np.abs([getattr(r, name) for r in own]) for name in ("tap", "log_sum_exp"))
        cells = [f"{strength:g}", f"{len(own)}", f"{covered(own):.3f}"]
        cells += [f"{np.median([r.annealed_error for r in own]):.1e}"]
        cells += [f"{f(z):.1e}" for z in (tap, lse) for f in (np.nanmedian, np.nanmax)]
        lines.append("| " + " | ".join([*cells, str(int(np.isnan(tap).sum()))]) + " |")
    bias = np.mean([r.annealed for r in results])
    lines.append(f"\nall {len(results)}: within 3σ {covered(results):.3f}; mean error {bias:+.1e}")
    return "\n".join(lines)
