"""Mixtures of independent units near a machine: the means of data, its mean-field solutions, and classes of rows."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.data.rows import spaced
from tapmachine.likelihood.annealing.paths import AnnealingPath, Base, path_from, seeded
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.sampler import upward
from tapmachine.solver import TAP, NaiveMeanField, solve
from tapmachine.solver.merging import ROUGHLY_SAME, merge_solutions
from tapmachine.solver.starts import random_start
from tapmachine.units import Units

BASE_ROWS = 2000  # maximum number of rows used to estimate the means at β = 0
BASE_CHAINS, BASE_SWEEPS = 100, 50  # chains used to estimate the means without data, and sweeps of burn-in and average
ROW_CHAINS, ROW_SWEEPS = 20, 10  # the same for each row on which a machine is conditioned
DEEP_SWEEPS = 10  # number of sweeps used to draw the layers above the first hidden layer, given data
N_STARTS = 100  # rows, and as many random points, from which solutions start
TOLERANCE, MAX_SWEEPS = 1e-6, 300  # of the solutions, which need not be accurate
MOST_COMPONENTS = 200
STRONG = 20.0  # field that brings means close to the bounds
EVEN_SHARE = 0.1  # share of the components' weights that is divided evenly among them
AT_REST = 1e-3  # share of the prior's mean in the means of each component, which keeps them away from the bounds
CLASS_ROWS, CLASS_SWEEPS = 20, 20  # minimum number of rows per class; iterations of k-means
MOST_CLASSES = 20


@torch.no_grad()
def independent_base(machine: BoltzmannMachine, data: Tensor | None = None, seed: int = 0) -> Base:
    """Return independent units with the means of data or of short chains of the machine.

    Without data, only the visible layer has a field. Fields on the hidden layers would attract all chains to the mode
    that the short chains happen to favor.
    """
    base = _priors(machine)
    path, generator = path_from(base, machine), seeded(machine.device, seed, "base")
    if data is None:
        n_chains, n_sweeps = (BASE_CHAINS, BASE_SWEEPS) if machine.n_rows is None else (ROW_CHAINS, ROW_SWEEPS)
        means, weight = [_typical_mean(path, n_chains, n_sweeps, generator)], n_chains
    else:
        states = _states_of(path, spaced(check_rows(machine, data), BASE_ROWS), generator)
        means, weight = [x.mean(0) for x in states], len(states[0])
    fields = list(base.fields)
    for layer_index, mean in enumerate(means):  # a pseudo-observation keeps means away from the bounds
        layer = machine.layers[layer_index]
        at_rest = layer.moments(Tilt(fields[layer_index][0], 0.0)).mean
        fields[layer_index] = layer.field_with_mean((weight * mean + at_rest) / (weight + 1)).unsqueeze(0)
    return replace(base, fields=tuple(fields))


@torch.no_grad()
def solution_base(
    machine: BoltzmannMachine, data: Tensor | None = None, seed: int = 0, n_starts: int = N_STARTS
) -> Base | None:
    """Return a mixture of a machine's mean-field solutions with weights exp(−F), or None if there are none.

    The solutions start from rows of data, if any, from random points, from the bounds of the visible units, and from
    the visible means if a single hidden unit is active.

    Args:
        machine: Machine that is not conditioned on rows.
        data: Rows from which solutions start, shape (N, n_visible).
        seed: Random seed of the random points (default: 0).
        n_starts: Number of random points, and maximum number of rows and of hidden units (default: 100).
    """
    random = random_start(machine, n_starts, seeded(machine.device, seed, "starts")).mean
    starts = [random, *_corners(machine.layers[0]), *_means_given_single_units(machine, n_starts)]
    if data is not None:
        starts.append(spaced(check_rows(machine, data), n_starts))
    means = torch.cat(starts)
    # TAP's reaction may make the priors of counts unnormalizable.
    scheme = NaiveMeanField() if any(units.has_counts for units in machine.layers) else TAP()
    found = solve(machine, Moments(means, torch.zeros_like(means)), scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
    return base_of_solutions(machine, found)


@torch.no_grad()
def base_of_solutions(machine: BoltzmannMachine, found: Solution) -> Base | None:
    """Return a mixture of given solutions with weights exp(−F), or None if none has a finite free energy."""
    finite = torch.isfinite(found.free_energy)
    if not bool(finite.any()):
        return None
    found = replace(found, status=torch.where(finite, int(Status.CONVERGED), found.status))
    solutions = merge_solutions(machine, found, same=ROUGHLY_SAME).solutions
    solutions = solutions.select(torch.arange(min(len(solutions), MOST_COMPONENTS)))
    weights = (-solutions.free_energy.double()).softmax(0)
    weights = (1 - EVEN_SHARE) * weights + EVEN_SHARE / len(weights)
    return _mixture("solutions", machine, [moments.mean for moments in solutions.moments], weights)


def classes_of(rows: Tensor, seed: int = 0) -> Tensor:  # (N, K)
    """Return a matrix that is 1 for the class of each row, found by k-means, and 0 for the other classes."""
    n_classes = max(1, min(MOST_CLASSES, len(rows) // CLASS_ROWS))
    flat = rows.flatten(1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)
    centers = flat[order[:n_classes]]
    for _ in range(CLASS_SWEEPS):
        labels = torch.cdist(flat, centers).argmin(1)
        counts = torch.bincount(labels, minlength=len(centers))
        sums = torch.zeros_like(centers).index_add_(0, labels, flat)
        centers = (sums / counts.unsqueeze(1))[counts > 0]
    return torch.nn.functional.one_hot(torch.cdist(flat, centers).argmin(1), len(centers)).to(flat.dtype)


@torch.no_grad()
def class_base(machine: BoltzmannMachine, data: Tensor, seed: int = 0, members: Tensor | None = None) -> Base:
    """Return a mixture of classes of rows, with the conditional means of the hidden units.

    Args:
        machine: Machine that is not conditioned on rows.
        data: Rows, shape (N, n_visible), of which at most 2,000 are used.
        seed: Random seed of the classes (default: 0).
        members: Result of `classes_of` for the rows that are used (default: computed by this function).
    """
    rows = spaced(check_rows(machine, data), BASE_ROWS)
    layers = list(machine.layers)
    means = upward(machine, [rows], lambda index, field: layers[index].mean_in(field))
    members = classes_of(rows, seed) if members is None else members
    counts = members.sum(0)
    of_classes = [
        ((members.T @ mean.flatten(1) + mean.flatten(1).mean(0)) / (counts.unsqueeze(1) + 1)).view(-1, *mean.shape[1:])
        for mean in means
    ]
    return _mixture("classes", machine, of_classes, ((counts + 1) / (counts + 1).sum()).double())


def _mixture(name: str, machine: BoltzmannMachine, means: Sequence[Tensor], weights: Tensor) -> Base:
    """Return a mixture with given means of the even layers, shape (K, *state_shape) each, and weights, shape (K,).

    Fields on the odd layers compensate for their priors. Hidden units that are active only in some modes because of a
    large bias would otherwise change abruptly along the path.
    """
    fields, offsets = [], weights.log()
    for index, (layer, mean) in enumerate(zip(machine.layers, means, strict=True)):
        zero = torch.zeros_like(mean[:1])
        if index % 2:
            prior = layer.prior_field
            fields.append(zero if prior is None else -prior.detach().expand_as(zero))
            continue
        at_rest = layer.moments(Tilt(zero, 0.0)).mean
        fields.append(layer.field_with_mean(torch.lerp(mean, at_rest.expand_as(mean), AT_REST)))
        offsets = offsets - layer.log_partition(Tilt(fields[-1], 0.0)).sum(-1, dtype=torch.float64)
    return Base(name, tuple(fields), offsets)


def _corners(units: Units) -> list[Tensor]:
    """Return means close to the lower and to the upper bounds, where these are finite; otherwise, the prior's means."""
    strong = STRONG / units.moments(Tilt(torch.zeros_like(units.any_state()), 0.0)).variance.sqrt().clamp(0.01, 1)
    return [
        units.moments(Tilt((sign * strong * torch.isfinite(bound)).unsqueeze(0), 0.0)).mean
        for sign, bound in zip((-1, 1), units.bounds(), strict=True)
    ]


def _means_given_single_units(machine: BoltzmannMachine, count: int) -> list[Tensor]:
    """Return the visible means if all units of the first hidden layer are at their lower bounds, except one."""
    if machine.is_pairwise:
        return []
    hidden = machine.layers[1]
    lower, upper = _corners(hidden)
    is_active = spaced(torch.eye(hidden.n, dtype=torch.bool, device=machine.device), count)
    states = torch.where(is_active.view(*is_active.shape, *[1] * (lower.dim() - 2)), upper, lower)
    others: list[Tensor | None] = [None] * len(machine.layers)
    others[1] = states
    return [machine.conditional(0, others).mean]


def _priors(machine: BoltzmannMachine) -> Base:
    """Return the priors of the units, with D = 0 on every layer."""
    rows = () if machine.n_rows is None else (machine.n_rows,)
    zeros = [
        torch.zeros((1, *rows, *layer.state_shape), dtype=machine.dtype, device=machine.device)
        for layer in machine.layers
    ]
    return Base("independent units", tuple(zeros), torch.zeros(1, dtype=torch.float64, device=machine.device))


def _typical_mean(path: AnnealingPath, n_chains: int, n_sweeps: int, generator: torch.Generator) -> Tensor:
    """Mean of the visible layer over short chains of the machine, after burn-in from the priors."""
    states = path.draw(n_chains, generator)
    total = torch.zeros_like(path.base[0][0])
    for sweep in range(2 * n_sweeps):
        states, _ = path.step(states, 1.0, 1.0, generator)
        total += states[0].mean(0) if sweep >= n_sweeps else 0.0
    return total / n_sweeps


def _states_of(path: AnnealingPath, x: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Return states of all layers, with the visible layer clamped to rows of data."""
    states = (x, *path.draw(len(x), generator)[1:])
    for _ in range(DEEP_SWEEPS if len(states) > 1 else 0):
        states = (x, *path.step(states, 1.0, 1.0, generator)[0][1:])
    return path.all_layers(states, generator)
