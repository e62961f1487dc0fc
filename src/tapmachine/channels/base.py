"""What a channel is: the one abstract class behind all of them."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Binary, Units
from tapmachine.units.checks import check_tensor
from tapmachine.units.conditioned import Clamped, Tilted


class Evidence(NamedTuple):
    """P(y|x) as a function of x: exp(Σ(Dx − ½Ex²)) times a number, and 0 if units that y tells have other states.

    Attributes:
        field: D, of shape (K, *state_shape); 0 for what is not observed.
        precision: E, likewise.
        known: which units y tells, (K, n).
        states: their states, (K, *state_shape); of no meaning elsewhere.
        log_scale: ln of that number, (K,).
    """

    field: Tensor
    precision: Tensor
    known: Tensor
    states: Tensor
    log_scale: Tensor


class Observed(NamedTuple):
    """A machine that is conditioned on observations, with one particle for each.

    Attributes:
        machine: its F is that of exp(−E(x))·P(y|x), but for
        log_scale: (K,), to be taken off F.
    """

    machine: BoltzmannMachine
    log_scale: Tensor


class Unknown(NamedTuple):
    """A parameter that is not given: its name, and the interval to look for it in."""

    name: str
    smallest: float
    largest: float


class Channel(ABC):
    """How observations arise from states, unit by unit. NaN is what was not observed, in every channel.

    A new channel implements `draw` and `evidence`. One whose likelihood is no tilt implements `observe_units` in its
    place, and one that mixes units, such as y = Fx + noise, `observe`.

    Attributes:
        sees_states: whether observations are states, as in the data, if they are there.
    """

    sees_states: ClassVar[bool] = False

    def corrupt(
        self, x: Tensor, generator: torch.Generator | None = None, units: Units | None = None
    ) -> Tensor:  # (K, n) -> (K, n)
        """What is observed of states x.

        Args:
            x: states, (K, n).
            generator: for the draws, on the device of x; the default always draws the same.
            units: whose states they are; `Binary` unless given.
        """
        x = check_tensor(x)
        if x.dim() == 0:
            raise ValueError("x is a single number; it must be states, (K, n)")
        generator = generator or torch.Generator(x.device).manual_seed(0)
        units = units or Binary(x.shape[-1])
        return self.draw(x if x.is_floating_point() else x.to(units.dtype), generator, units)

    @abstractmethod
    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:  # (K, n) -> (K, n)
        """What is observed of states of the units: `corrupt`, with everything given."""

    @abstractmethod
    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        """What observations say about each unit.

        Args:
            y: observations, (K, n).
            units: about whose states; `Binary` unless given.
        """

    def observe_units(self, units: Units, y: Tensor) -> tuple[Units, Tensor]:
        """The units conditioned on observations, and ln of the number that their likelihoods have in common, (K,)."""
        told = self.evidence(y, units)
        observed: Units = units
        if bool((told.field != 0).any()) or bool((told.precision != 0).any()):
            observed = Tilted(observed, Tilt(told.field, told.precision))
        if bool(told.known.any()) or observed is units:  # with rows, even where nothing is known
            observed = Clamped(observed, told.states, None if bool(told.known.all()) else told.known, validate=False)
        return observed, told.log_scale

    def unknown(self, y: Tensor, units: Units) -> Unknown | None:
        """The parameter that was not given and can be estimated from observations, if there is one."""
        return None

    def rows(self, index: Tensor) -> "Channel":
        """The channel for some of the rows; itself, if it is the same for all of them."""
        return self

    def at_face_value(self, y: Tensor) -> Tensor | None:  # (K, n)
        """Observations taken for the states themselves, NaN where there are none; None if they are other quantities."""
        return y

    def observe(self, machine: BoltzmannMachine, y: Tensor) -> Observed:
        """The machine conditioned on observations of its visible layer."""
        layers = machine.units()
        layers[0], log_scale = self.observe_units(layers[0], y)
        return Observed(machine.with_layers(layers), log_scale)
