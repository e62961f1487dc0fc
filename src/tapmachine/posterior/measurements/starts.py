"""Initial states for the recovery of signals: samples from the machine, examples, or user-defined states."""

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.sampler import gibbs
from tapmachine.posterior.baselines import nearest_neighbors
from tapmachine.posterior.measurements.prior import Layers, MachinePrior, expanded
from tapmachine.posterior.measurements.task import Task
from tapmachine.solver.process import from_below, select
from tapmachine.solver.starts import StartingPoint, fitting, prior_moments, starting_moments

NEIGHBOR_SHARE = 0.7  # weight of an example in an initial state; the neutral state has the remaining weight
N_SAMPLES, SAMPLE_SWEEPS = 100, 100  # number of samples that are drawn if there are no examples, and number of sweeps


def neutral_start(prior: MachinePrior, examples: Tensor | None) -> Layers:
    """Return an initial state with the mean and variance of the examples, or of samples drawn from the machine.

    The first dimension of the moments has size 1, since the state is the same for all signals.
    """
    machine = prior.machine
    if examples is None:
        draws = torch.Generator(machine.device).manual_seed(0)
        no_tilt = Tilt(prior_moments(machine.layers[0], N_SAMPLES).mean * 0.0, 0.0)
        examples = gibbs(machine, machine.layers[0].sample(no_tilt, draws), SAMPLE_SWEEPS, draws)[0]
    mean = examples.mean(0, keepdim=True)
    visible = Moments(mean, (examples - mean).square().mean(0, keepdim=True))
    return _completed(machine, [visible])


def default_starts(task: Task, neutral: Layers, examples: Tensor | None, n_neighbors: int) -> list[Layers]:
    """Return the default initial states: the neutral state and the examples with the nearest measurements."""
    count = len(task.y)
    starts = [expanded(neutral, count)]
    if examples is None:
        return starts
    measured = task.channel.expected(task.operator.forward(examples.flatten(1)) + task.channel.bias.to(task.y))
    index = nearest_neighbors(measured, task.y, min(n_neighbors, len(examples)))
    mean, variance = starts[0][0]
    for neighbor in index.unbind(1):
        visible = Moments(torch.lerp(mean, examples[neighbor], NEIGHBOR_SHARE), variance)
        starts.append(_completed(task.prior.machine, [visible]))
    return starts


def given_start(machine: BoltzmannMachine, start: StartingPoint, neutral: Layers, rows: Tensor, count: int) -> Layers:
    """Convert a user-defined initial state to moments of all layers for selected signals."""
    moments = starting_moments(machine, fitting(machine, start))
    assert moments[0] is not None
    if len(moments[0].mean) not in (1, count):
        raise ValueError(f"an element of starts has {len(moments[0].mean)} rows, but y has {count} rows")
    visible, *others = (layer for layer in moments if layer is not None)
    if not bool(visible.variance.any()):  # data have zero variance, which would make messages infinite
        visible = Moments(visible.mean, neutral[0].variance.expand_as(visible.mean))
    layers = _completed(machine, [visible, *others])
    some: Layers = select(expanded(layers, count) if len(layers[0].mean) == 1 else layers, rows)
    return some


def _completed(machine: BoltzmannMachine, moments: list[Moments]) -> Layers:
    """Extend the moments of the lowest layers to all layers; missing moments are computed from the layer below."""
    missing: list[Moments | None] = [*moments, *[None] * (len(machine.layers) - len(moments))]
    return tuple(from_below(list(machine.layers), list(machine.weights), missing))
