"""Prior of signals defined by a machine, which responds to tilts on its visible units with posterior moments."""

from typing import Any

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine, condition
from tapmachine.posterior.driver import PosteriorOptions
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.solver.driver import ROOT_STEPS
from tapmachine.units.conditioned import Tilted

Layers = tuple[Moments, ...]  # of all layers


class MachinePrior:
    """Prior of signals defined by a machine.

    Args:
        machine: Machine whose visible states are the signals.
        scheme: Mean-field scheme (default: `TAP()`).
    """

    def __init__(self, machine: BoltzmannMachine, scheme: Scheme | None = None) -> None:
        self.machine, self.scheme = machine, scheme or TAP()
        self.process = self.scheme.bind(machine)
        if machine.device.type != "cpu":
            self.process.root_steps = ROOT_STEPS
        self.shape = machine.layers[0].state_shape

    def respond(self, tilt: Tilt, moments: Layers) -> Layers:
        """Compute the moments of all layers after a few more sweeps under a tilt on the visible units.

        Args:
            tilt: Tilt on the components of the visible states, of shape (K, N).
            moments: Current moments of all layers.
        """
        visible, *others = self.machine.layers
        layers = [Tilted(visible, self.shaped(tilt), validate=False), *others]
        state = self.process.begin(layers, list(moments))
        state, _ = self.process.step(layers, state)
        return tuple(self.process.moments(state))

    def settle(self, tilt: Tilt, moments: Layers, options: PosteriorOptions) -> Solution:
        """Solve the tilted machine, starting from the current moments of all layers."""
        conditioned = condition(self.machine, self.shaped(tilt))
        limits: dict[str, Any] = {"tol": options.tol, "max_sweeps": options.max_sweeps}
        return solve(conditioned, list(moments), self.scheme, callback=options.callback, **limits)

    def shaped(self, tilt: Tilt) -> Tilt:
        """Reshape a tilt on components to the shape of the visible states."""
        return Tilt(*(torch.as_tensor(z).unflatten(1, self.shape) for z in tilt))


def flat(moments: Layers) -> Moments:  # (K, N)
    """Return the mean and variance of each component of the visible states."""
    return Moments(*(z.flatten(1) for z in moments[0]))


def mean_change(new: Moments, old: Moments) -> Tensor:  # (K,)
    """Compute the mean squared change in the means and variances of all components."""
    return (new.mean - old.mean).square().mean(1) + (new.variance - old.variance).square().mean(1)


def expanded(layers: Layers, count: int) -> Layers:
    """Expand the moments of a single signal to `count` signals."""
    return tuple(Moments(*(z.expand(count, *z.shape[1:]) for z in moments)) for moments in layers)
