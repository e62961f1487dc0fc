"""Base class of channels, and their results."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_tensor
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Binary, Units
from tapmachine.units.conditioned import Clamped, Tilted


class Evidence(NamedTuple):
    """P(y|x) as a function of x: exp(Σ(Dx − ½Ex²) + log_scale), and 0 unless the known units have their states.

    Attributes:
        field: D, (K, *state_shape); 0 where nothing was observed.
        precision: E, same shape; 0 where nothing was observed.
        known: Which units are known exactly, (K, n).
        states: Their states, (K, *state_shape); arbitrary for the other units.
        log_scale: Term of ln P(y|x) that does not depend on x, (K,).
    """

    field: Tensor
    precision: Tensor
    known: Tensor
    states: Tensor
    log_scale: Tensor


class Observed(NamedTuple):
    """A machine conditioned on K observations.

    Attributes:
        machine: The conditioned machine, with one row per observation.
        log_scale: Value to subtract from the machine's F to get that of exp(−E(x))·P(y|x), (K,).
    """

    machine: BoltzmannMachine
    log_scale: Tensor


class Unknown(NamedTuple):
    """Parameter to be estimated: its name, and the interval to search."""

    name: str
    smallest: float
    largest: float


class Channel(ABC):
    """A noisy channel P(y|x). In every channel, NaN marks a value that was not observed.

    A new channel implements `draw` and `evidence`. If its likelihood is not a tilt, it implements `observe_units`
    instead of `evidence`. Channels that mix units, such as y = Fx + noise, are `Measurements`.

    Attributes:
        sees_states: Whether observed values are states, as in the data.
    """

    sees_states: ClassVar[bool] = False

    def corrupt(
        self, x: Tensor, generator: torch.Generator | None = None, units: Units | None = None
    ) -> Tensor:  # (K, n) -> (K, n)
        """Draw observations of states x.

        Args:
            x: States, (K, n).
            generator: Random generator on the device of x (default: one with a fixed seed).
            units: Units with states x (default: `Binary`).
        """
        x = check_tensor(x)
        if x.dim() == 0:
            raise ValueError("x is a single number; expected states of shape (K, n)")
        generator = generator or torch.Generator(x.device).manual_seed(0)
        units = units or Binary(x.shape[-1])
        return self.draw(x if x.is_floating_point() else x.to(units.dtype), generator, units)

    @abstractmethod
    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:  # (K, n) -> (K, n)
        """Draw observations of states of the units; called by `corrupt`."""

    @abstractmethod
    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        """Evidence of observations about each unit.

        Args:
            y: Observations, (K, n).
            units: The observed units (default: `Binary`).
        """

    def observe_units(self, units: Units, y: Tensor) -> tuple[Units, Tensor]:
        """Condition units on observations; returns the units and the `log_scale` of the evidence, (K,)."""
        evidence = self.evidence(y, units)
        observed: Units = units
        if bool((evidence.field != 0).any()) or bool((evidence.precision != 0).any()):
            observed = Tilted(observed, Tilt(evidence.field, evidence.precision))
        if bool(evidence.known.any()) or observed is units:  # adds rows, even if nothing is known
            known = None if bool(evidence.known.all()) else evidence.known
            observed = Clamped(observed, evidence.states, known, validate=False)
        return observed, evidence.log_scale

    def unknown(self, y: Tensor, units: Units) -> Unknown | None:
        """Parameter that is None and can be estimated from observations, if any."""
        return None

    def rows(self, index: Tensor) -> "Channel":
        """Channel for some of the rows; itself if it is the same for all rows."""
        return self

    def at_face_value(self, y: Tensor) -> Tensor | None:  # (K, n)
        """Observations as states, NaN where not observed; None if they are other quantities."""
        return y

    def observe(self, machine: BoltzmannMachine, y: Tensor) -> Observed:
        """Condition the machine on observations of its visible layer."""
        layers = list(machine.layers)
        layers[0], log_scale = self.observe_units(layers[0], y)
        return Observed(machine.with_layers(layers), log_scale)
