"""A machine as the prior of signals: it responds to tilts of its visible units with their posterior moments."""

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine, condition
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.units.conditioned import Tilted

Layers = tuple[Moments, ...]  # of all layers


class MachinePrior:
    """A machine whose visible units receive a tilt that changes slowly between iterations."""

    def __init__(self, machine: BoltzmannMachine, scheme: Scheme | None = None) -> None:
        self.machine, self.scheme = machine, scheme or TAP()
        self.process = self.scheme.bind(machine)
        if machine.device.type != "cpu":
            self.process.root_steps = ROOT_STEPS
        self.shape = machine.layers[0].state_shape

    def respond(self, tilt: Tilt, moments: Layers) -> Layers:
        """Moments of all layers after a few more sweeps, under a tilt of the visible units, (K, N) flat."""
        visible, *others = self.machine.layers
        layers = [Tilted(visible, self.shaped(tilt), validate=False), *others]
        state = self.process.begin(layers, list(moments))
        state, _ = self.process.step(layers, state)
        return tuple(self.process.moments(state))

    def settle(self, tilt: Tilt, moments: Layers, tol: float, max_sweeps: int) -> Solution:
        """Solution of the tilted machine, starting from some moments."""
        conditioned = condition(self.machine, self.shaped(tilt))
        return solve(conditioned, list(moments), self.scheme, tol=tol, max_sweeps=max_sweeps)

    def shaped(self, tilt: Tilt) -> Tilt:
        """Reshape a tilt of components to one of units."""
        return Tilt(*(torch.as_tensor(z).unflatten(1, self.shape) for z in tilt))


def flat(moments: Layers) -> Moments:  # (K, N)
    """Mean and variance of each component of the visible states."""
    return Moments(*(z.flatten(1) for z in moments[0]))


def mean_change(new: Moments, old: Moments) -> Tensor:  # (K,)
    """Mean over all components of the squared change of mean and variance."""
    return (new.mean - old.mean).square().mean(1) + (new.variance - old.variance).square().mean(1)


def expanded(layers: Layers, count: int) -> Layers:
    """Expand one initial state to all signals."""
    return tuple(Moments(*(z.expand(count, *z.shape[1:]) for z in moments)) for moments in layers)
