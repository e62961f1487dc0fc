"""The checks that all unit types share, with errors that say what was wrong and where."""

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tapmachine.beliefs import Tilt

Values = Tensor | float | Sequence[float]  # what a parameter may be given as

SUPPORTED_DTYPES = (torch.float32, torch.float64)
VALUES_AT_A_TIME = 2**18  # of data that are looked at: masks and float64 of all take as much memory as they do, or more


def in_parts(x: Tensor) -> tuple[Tensor, ...]:  # (N, ...) -> (M, ...), …
    """The rows, some at a time."""
    parts: tuple[Tensor, ...] = x.split(rows_at_a_time(x[:1].numel()))
    return parts


def rows_at_a_time(width: int) -> int:
    """How many rows of so many values are looked at together."""
    return max(1, VALUES_AT_A_TIME // max(1, width))


def check_tensor(x: object, name: str = "x") -> Tensor:
    """The same, if it is a tensor of real numbers that has them all in memory; or a ValueError."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{name} is a {type(x).__name__}; it must be a torch.Tensor, as torch.as_tensor({name}) makes it"
        )
    if x.is_complex() or x.layout != torch.strided or x.is_meta:
        found = f"{x.dtype}, {x.layout}, on {x.device}".replace("torch.", "")
        raise ValueError(f"{name} is a tensor of {found}; it must be a dense one of real numbers")
    return x


def from_array(values: np.ndarray[Any, Any], name: str) -> Tensor:
    """An array of real numbers as a tensor, which may share its memory; or a ValueError."""
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ValueError(f"{name} holds {values.dtype.name}; it must hold real numbers, float64 at most")
    # Torch wants memory that it may write to, and numbers as this machine has them.
    return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ("C", "W")))


def check_count(name: str, value: Any, at_least: int = 1, at_most: int | None = None) -> int:
    """The value as an int, if it is a whole number in that range, NumPy's included; or a ValueError."""
    try:
        count = operator.index(value)
    except TypeError:
        count = at_least - 1
    if isinstance(value, bool | np.bool_) or count < at_least or (at_most is not None and count > at_most):
        range_ = f", {at_least} or more" if at_most is None else f" from {at_least} to {at_most}"
        raise ValueError(f"{name} is {value!r}; it must be a whole number{range_}")
    return count


class Checked(nn.Module):
    """Checks of tilts, states and parameters for a layer of units."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The trailing shape of states, fields and means."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(tensor.dtype for tensor in self._tensors() if tensor.is_floating_point())

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self._tensors()).device

    def _tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers; first its own, which is much faster than to look for modules within."""
        own = (tensor for tensor in chain(self._parameters.values(), self._buffers.values()) if tensor is not None)
        return chain(own, self.parameters(), self.buffers())

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """The states as a tensor of the units' dtype, or a ValueError that names the first one off the support."""
        raise NotImplementedError

    def unpack(self, tilt: Tilt) -> tuple[Tensor, Tensor]:
        """The tilt's field and precision, of one shape that ends in `state_shape`, or a ValueError."""
        if not isinstance(tilt, Tilt):
            raise ValueError(f"{type(self).__name__}: tilt is a {type(tilt).__name__}; it must be a Tilt")
        dtype = self.dtype
        field, precision = (
            self._tilt_tensor(value, name, dtype) for name, value in zip(Tilt._fields, tilt, strict=True)
        )
        shapes = [tuple(z.shape) for z in (field, precision)]
        if shapes[0][-len(self.state_shape) :] == self.state_shape and shapes[1] in ((), shapes[0]):
            return field, precision.expand(shapes[0])  # nearly always; the general way takes as long as a small product
        ends_well = all(shape == () or shape[-len(self.state_shape) :] == self.state_shape for shape in shapes)
        try:
            shape = torch.broadcast_shapes(*shapes, self.state_shape)
        except RuntimeError:
            ends_well = False
        if not ends_well:
            found = " and ".join(map(str, shapes))
            raise ValueError(f"{type(self).__name__}: tilt has shapes {found}; they must end in {self.state_shape}")
        return field.expand(shape), precision.expand(shape)

    def _tilt_tensor(self, value: Tensor | float, name: str, dtype: torch.dtype) -> Tensor:
        if dtype not in SUPPORTED_DTYPES:
            raise ValueError(f"{type(self).__name__}: the parameters are {dtype}; they must be float32 or float64")
        if not isinstance(value, Tensor):
            if isinstance(value, int | float):  # filled in place: a copy to a GPU cannot be captured
                return torch.full((), value, dtype=dtype, device=self.device)
            return self.as_tensor(value, f"tilt.{name}").to(dtype).to(self.device)  # type: ignore[unreachable]
        if value.dtype != dtype:
            raise ValueError(
                f"{type(self).__name__}: tilt.{name} is {value.dtype}, but the units are {dtype}; "
                "convert one of them with .to()"
            )
        return value

    def as_states(self, x: Tensor) -> Tensor:
        """x in the units' dtype, or a ValueError about its shape or dtype. Whole numbers and bool are converted."""
        name = type(self).__name__
        try:
            check_tensor(x)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if x.dim() < len(self.state_shape) or tuple(x.shape[-len(self.state_shape) :]) != self.state_shape:
            raise ValueError(f"{name}: x has shape {tuple(x.shape)}; it must end in {self.state_shape}")
        if x.is_floating_point() and x.dtype != self.dtype:
            raise ValueError(f"{name}: x is {x.dtype}, but the units are {self.dtype}; convert one of them with .to()")
        return x.to(self.dtype)

    def reject_states(self, are_bad: Callable[[Tensor], Tensor], x: Tensor, requirement: str) -> None:
        """Raises a ValueError that names the first element of the states that is bad, if there is one."""
        if torch.compiler.is_compiling():
            return
        first = 0
        for part in in_parts(x) if x.dim() > len(self.state_shape) else (x,):
            self.reject(are_bad(part), part, "x", requirement, first)
            first += len(part)

    def reject(self, bad: Tensor, x: Tensor, name: str, requirement: str, first: int = 0) -> None:
        """Raises a ValueError that names the first element of x that is bad, if there is one; `first` is the number of
        the first row.
        """
        if torch.compiler.is_compiling():
            return
        bad, x = torch.broadcast_tensors(bad, x)
        if bad.any():
            index = tuple(bad.nonzero()[0].tolist())
            where = f"{name}[{', '.join(map(str, (index[0] + first, *index[1:])))}]" if index else name
            raise ValueError(f"{type(self).__name__}: {where} is {x[index].item():g}; {requirement}")

    def as_tensor(self, value: Values, name: str) -> Tensor:
        """A real tensor, or a ValueError. Python numbers become float64, so that no digit is lost on the way."""
        try:
            given = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
            if given.is_complex() or given.dtype == torch.bool:
                raise TypeError
            return given if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            found = value.dtype if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"{type(self).__name__}: {name} is {found}; it must be a real number or several") from None

    def as_parameter(self, value: Values, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A finite parameter tensor of the given shape, or a ValueError."""
        tensor = self.as_tensor(value, name).to(dtype)
        if tensor.shape not in ((), shape):
            found = tuple(tensor.shape)
            raise ValueError(f"{type(self).__name__}: {name} has shape {found}; it must be a number or {shape}")
        self.reject(~torch.isfinite(tensor), tensor, name, "it must be finite")
        return tensor.expand(shape).clone()

    def as_count(self, value: int, name: str, least: int) -> int:
        """A whole number that is large enough, or a ValueError."""
        return check_count(f"{type(self).__name__}: {name}", value, least)

    def common_dtype(self, *values: Values | None) -> torch.dtype:
        """The dtype of the first floating tensor among the values, or torch's default; float32 or float64."""
        tensors = (v for v in values if isinstance(v, Tensor) and v.is_floating_point())
        dtype = next((v.dtype for v in tensors), torch.get_default_dtype())
        if dtype not in SUPPORTED_DTYPES:
            raise ValueError(
                f"{type(self).__name__}: parameters of {dtype} were given; they must be float32 or float64"
            )
        return dtype

    def check_fit(self, name: str, value: Tensor) -> None:
        """Raises a ValueError if a fitted value does not fit into a finite parameter."""
        bad = ~torch.isfinite(value.to(self.dtype))
        self.reject(bad, value, name, "a column without spread has no finite fit; use smoothing > 0")

    def checked_rows(self, x: Tensor, weights: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
        """The arguments of `fit_to`, checked: states of shape (rows, *state_shape) and a weight for each row."""
        name = type(self).__name__
        if not (isinstance(smoothing, int | float) and 0 <= smoothing < float("inf")):
            raise ValueError(f"{name}: smoothing is {smoothing!r}; it must be a finite number, 0 or more")
        x = self.check_states(x).detach()
        if x.dim() != 1 + len(self.state_shape) or len(x) == 0:
            found = tuple(x.shape)
            raise ValueError(f"{name}: x has shape {found}; it must hold one row or more of {self.state_shape}")
        if weights is None:
            return x, x.new_ones(len(x))
        weights = torch.as_tensor(weights, dtype=x.dtype, device=x.device)
        if weights.shape != (len(x),):
            found = tuple(weights.shape)
            raise ValueError(f"{name}: weights has shape {found}; it must be ({len(x)},), one for each row")
        self.reject(~(torch.isfinite(weights) & (weights >= 0)), weights, "weights", "it must be finite, 0 or more")
        if weights.sum() == 0:
            raise ValueError(f"{name}: weights are all 0")
        return x, weights
