"""Machines in training, and the scaling that is applied to their training data."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.data.rows import Rows, by_rows, parts, place_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.rescaling import rescale
from tapmachine.machine.whitening import in_coordinates


@dataclass(frozen=True)
class ScaledMachine:
    """Machine for data that are scaled to a standard deviation of about 0.3, as for uniform data in [0, 1].

    Attributes:
        machine: Machine with small random weights, or fitted by `start_for_table`.
        scale: Factor between the states of the machine and the data, a power of two.
        shift: Offset of the data, which are shift + scale·x for states x of the machine.
        bounds: Bounds of the visible units, in the units of the data.
        why: Visible unit type, and the reason for its choice.
        transform: Matrix that replaces `scale` for complete real-valued tables.
        is_fitted: Whether the machine was fitted by `start_for_table`.
    """

    machine: BoltzmannMachine
    scale: float
    shift: Tensor
    bounds: tuple[Tensor, Tensor]
    why: str
    transform: Tensor | None = None
    is_fitted: bool = False

    @property
    def is_in_units_of_data(self) -> bool:
        """Whether the machine is trained on unscaled data."""
        return self.transform is None and self.scale == 1 and not bool(self.shift.any())

    def in_units_of_data(self) -> BoltzmannMachine:
        """Return a copy of the current machine in the units of the data, in float64 for tables."""
        if self.is_in_units_of_data:
            return deepcopy(self.machine)
        if self.transform is not None:
            return in_coordinates(self.machine, self.transform, self.shift)
        machine = rescale(self.machine, self.scale, self.shift)
        for rounded, bound in zip(machine.layers[0].bounds(), self.bounds, strict=True):
            rounded.copy_(bound)
        return machine

    def scaled(self, x: Rows) -> Rows:
        """Scale data for the machine.

        Raises:
            ValueError: If a value is out of bounds.
        """
        for first, part in parts(x):
            self._check_bounds(x, first, part)
        if self.is_in_units_of_data:
            return by_rows(lambda part: part.to(self.machine.dtype), x) if self.is_fitted else x
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        shift, *bounds = (z.to(device) for z in (self.shift, *self.machine.layers[0].bounds()))
        inverse = None if self.transform is None else torch.linalg.inv(self.transform).T.to(device)

        def shifted_and_scaled(part: Tensor) -> Tensor:
            if inverse is not None:
                whitened: Tensor = (part.double() - shift) @ inverse
                return whitened.to(self.machine.dtype)
            return ((part - shift.to(part)) / self.scale).clamp(*bounds)

        return by_rows(shifted_and_scaled, x)

    def _check_bounds(self, x: Rows, first: int, part: Tensor) -> None:
        if not part.is_floating_point():
            return
        lower, upper = (bound.to(part.device) for bound in self.bounds)
        outside = (part < lower) | (part > upper)
        if bool(outside.any()):
            row, column = outside.nonzero()[0].tolist()
            value = f"{place_of(first + row, x)}, column {column} is {part[row, column]:g}"
            ends = (float(bound.expand(part.shape[1])[column]) for bound in (lower, upper))
            raise ValueError("{}; expected a value from {:g} to {:g}".format(value, *ends))
