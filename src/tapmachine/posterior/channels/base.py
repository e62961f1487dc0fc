"""Base class for noisy channels, and the types of their results."""

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
    """Likelihood P(y|x) = exp(Σ(Dx − ½Ex²) + log_scale) of K observations as a function of x.

    If some units are known exactly, the likelihood is 0 for all x in which these units have other states.

    Attributes:
        field: Field D, of shape (K, *state_shape); 0 for units that were not observed.
        precision: Precision E, of shape (K, *state_shape); 0 for units that were not observed.
        known: Mask of the units that are known exactly, of shape (K, n).
        states: States of the known units, of shape (K, *state_shape); arbitrary for the other units.
        log_scale: Term of ln P(y|x) that does not depend on x, of shape (K,).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, GaussianNoise
        >>> GaussianNoise(0.5).evidence(torch.ones(1, 2), Binary(2)).precision
        tensor([[4., 4.]])
    """

    field: Tensor
    precision: Tensor
    known: Tensor
    states: Tensor
    log_scale: Tensor


class UnknownParameter(NamedTuple):
    """Parameter to be estimated, with its name and the interval to search.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric
        >>> BinarySymmetric(None).unknown(torch.ones(1, 2), Binary(2)).name
        'p'
    """

    name: str
    smallest: float
    largest: float


def drawing_arguments(
    x: Tensor, generator: torch.Generator | None, units: Units | None
) -> tuple[Tensor, torch.Generator, Units]:
    """Validate states whose observations are to be drawn, and complete the other arguments of `corrupt`."""
    x = check_tensor(x)
    if x.dim() == 0:
        raise ValueError("x is a single number; expected states of shape (K, n)")
    units = units or Binary(x.shape[-1])
    x = x if x.is_floating_point() else x.to(units.dtype)
    return x, generator or torch.Generator(x.device).manual_seed(0), units


class Channel(ABC):
    """Base class for noisy channels P(y|x).

    For all channels, NaN marks a missing observation. A new channel implements `draw` and `evidence`. If its likelihood
    is not a tilt, it implements `observe_units` instead of `evidence`. Observations that mix units, such as
    y = Fx + noise, are `Measurements`.

    Attributes:
        sees_states: Whether observations are states of the units.

    Example:
        >>> import torch
        >>> from tapmachine import BinarySymmetric
        >>> BinarySymmetric(0.1).corrupt(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    sees_states: ClassVar[bool] = False

    def corrupt(
        self, x: Tensor, generator: torch.Generator | None = None, units: Units | None = None
    ) -> Tensor:  # (K, n) -> (K, n)
        """Draw observations of states x.

        Args:
            x: States, of shape (K, n).
            generator: Random number generator on the device of x (default: one with a fixed seed).
            units: Units to which the states belong (default: `Binary`).
        """
        return self.draw(*drawing_arguments(x, generator, units))

    @abstractmethod
    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:  # (K, n) -> (K, n)
        """Draw observations of valid states; called by `corrupt`."""

    @abstractmethod
    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        """Compute the evidence that observations provide about each unit.

        Args:
            y: Observations, of shape (K, n), with NaN for missing values.
            units: Observed units (default: `Binary`).
        """

    def observe_units(self, units: Units, y: Tensor) -> tuple[Units, Tensor]:
        """Condition units on observations; return the conditioned units and the `log_scale` of the evidence, (K,)."""
        evidence = self.evidence(y, units)
        observed: Units = units
        if bool((evidence.field != 0).any()) or bool((evidence.precision != 0).any()):
            observed = Tilted(observed, Tilt(evidence.field, evidence.precision))
        if bool(evidence.known.any()) or observed is units:  # also sets the number of rows if no unit is known
            known = None if bool(evidence.known.all()) else evidence.known
            observed = Clamped(observed, evidence.states, known, validate=False)
        return observed, evidence.log_scale

    @classmethod
    def supports(cls, units: Units) -> bool:
        """Return whether the channel can observe units of this type."""
        return True

    def check(self, units: Units) -> None:
        """Raise a ValueError if a parameter that is set is invalid for the units."""
        return

    def unknown(self, y: Tensor, units: Units) -> UnknownParameter | None:
        """Return the parameter to be estimated from observations; None if all parameters are set."""
        return None

    def rows(self, index: Tensor) -> "Channel":
        """Return the channel for selected rows, or the channel itself if it is the same for all rows."""
        return self

    def as_states(self, y: Tensor) -> Tensor | None:  # (K, n)
        """Return observations as states, with NaN for missing values; None if observations are not states."""
        return y

    def observe(self, machine: BoltzmannMachine, y: Tensor) -> tuple[BoltzmannMachine, Tensor]:
        """Condition a machine on observations of its visible layer.

        Returns:
            The conditioned machine, with one row of evidence per observation, and the value to subtract from its F to
            obtain −ln Σ_x exp(−E(x))·P(y|x), of shape (K,).
        """
        visible, *others = machine.layers
        observed, log_scale = self.observe_units(visible, y)
        return machine.with_layers([observed, *others]), log_scale
