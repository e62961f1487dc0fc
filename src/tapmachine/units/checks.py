"""Validation shared by all unit types; error messages contain the index of the first invalid value."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import overload

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import SUPPORTED_DTYPES, check_count, check_tensor
from tapmachine.data.lazy_rows import LazyRows
from tapmachine.data.rows import Rows, in_parts

Values = Tensor | float | Sequence[float]  # accepted values of parameters


class Checked(nn.Module):
    """Base class with validation methods for tilts, states and parameters of a layer of units."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Trailing shape of states, fields and means."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters."""
        return next(tensor.dtype for tensor in self._tensors() if tensor.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self._tensors()).device

    def _tensors(self) -> Iterator[Tensor]:
        """Iterate over parameters and buffers; submodules come last, because collecting their tensors is slow."""
        direct = (tensor for tensor in chain(self._parameters.values(), self._buffers.values()) if tensor is not None)
        return chain(direct, self.parameters(), self.buffers())

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """Validate states and return them in the units' dtype; see `Units.check_states`."""
        raise NotImplementedError

    def unpack(self, tilt: Tilt) -> tuple[Tensor, Tensor]:
        """Return the field and the precision of a tilt, broadcast to a common shape that ends in `state_shape`."""
        if not isinstance(tilt, Tilt):
            raise ValueError(f"{type(self).__name__}: tilt is a {type(tilt).__name__}; expected a Tilt")
        dtype = self.dtype
        field, precision = (
            self._tilt_tensor(value, name, dtype) for name, value in zip(Tilt._fields, tilt, strict=True)
        )
        shapes, state_shape = [tuple(z.shape) for z in (field, precision)], self.state_shape
        if shapes[0][-len(state_shape) :] == state_shape and shapes[1] in ((), shapes[0]):
            return field, precision.expand(shapes[0])  # fast path; the general case takes as long as a small matmul
        ends_well = all(shape == () or shape[-len(state_shape) :] == state_shape for shape in shapes)
        try:
            shape = torch.broadcast_shapes(*shapes, state_shape)
        except RuntimeError:
            ends_well = False
        if not ends_well:
            both = " and ".join(map(str, shapes))
            raise ValueError(f"{type(self).__name__}: tilt has shapes {both}; expected shapes ending in {state_shape}")
        return field.expand(shape), precision.expand(shape)

    def _tilt_tensor(self, value: Tensor | float, name: str, dtype: torch.dtype) -> Tensor:
        if dtype not in SUPPORTED_DTYPES:
            raise ValueError(f"{type(self).__name__}: the parameters are {dtype}; expected float32 or float64")
        if not isinstance(value, Tensor):
            if isinstance(value, int | float):  # filled on the device, since a copy to a GPU cannot be captured
                return torch.full((), value, dtype=dtype, device=self.device)
            return self.as_tensor(value, f"tilt.{name}").to(dtype).to(self.device)  # type: ignore[unreachable]
        if value.dtype != dtype:
            raise ValueError(
                f"{type(self).__name__}: tilt.{name} is {value.dtype}, but the units are {dtype}; "
                "convert one of them with .to()"
            )
        return value

    def as_states(self, x: Tensor) -> Tensor:
        """Convert states to the units' dtype; integer and bool tensors are accepted.

        Raises:
            ValueError: If the shape is wrong, or if x has a different floating-point dtype.
        """
        name = type(self).__name__
        try:
            check_tensor(x)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if x.dim() < len(self.state_shape) or tuple(x.shape[-len(self.state_shape) :]) != self.state_shape:
            raise ValueError(f"{name}: x has shape {tuple(x.shape)}; expected a shape ending in {self.state_shape}")
        if x.is_floating_point() and x.dtype != self.dtype:
            raise ValueError(f"{name}: x is {x.dtype}, but the units are {self.dtype}; convert one of them with .to()")
        return x.to(self.dtype)

    def reject_states(self, are_bad: Callable[[Tensor], Tensor], x: Tensor, requirement: str) -> None:
        """Raise a ValueError if a state is invalid; the message contains the index of the first invalid element."""
        if torch.compiler.is_compiling():
            return
        first = 0
        for part in in_parts(x) if x.dim() > len(self.state_shape) else (x,):
            self.reject(are_bad(part), part, "x", requirement, first)
            first += len(part)

    def reject(self, bad: Tensor, x: Tensor, name: str, requirement: str, first: int = 0) -> None:
        """Raise a ValueError if an element of x is invalid; the message contains the index of the first one.

        Args:
            bad: Mask of the invalid elements, of the same shape as x.
            x: Tensor to validate.
            name: Name of x in the error message.
            requirement: End of the error message, such as "expected 0 or 1".
            first: Index of the first row of x within the complete data.
        """
        if torch.compiler.is_compiling():
            return
        bad, x = torch.broadcast_tensors(bad, x)
        if bad.any():
            index = tuple(bad.nonzero()[0].tolist())
            where = f"{name}[{', '.join(map(str, (index[0] + first, *index[1:])))}]" if index else name
            raise ValueError(f"{type(self).__name__}: {where} is {x[index].item():g}; {requirement}")

    def as_tensor(self, value: Values, name: str) -> Tensor:
        """Convert a value to a real tensor; Python numbers become float64 to preserve all digits."""
        try:
            tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
            if tensor.is_complex() or tensor.dtype == torch.bool:
                raise TypeError
            return tensor if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            what = value.dtype if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"{type(self).__name__}: {name} is {what}; expected a real number or a sequence") from None

    def as_parameter(self, value: Values, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Convert a value to a finite tensor with the shape and dtype of a parameter."""
        tensor = self.as_tensor(value, name).to(dtype)
        if tensor.shape not in ((), shape):
            raise ValueError(
                f"{type(self).__name__}: {name} has shape {tuple(tensor.shape)}; expected a number or a tensor of "
                f"shape {shape}"
            )
        self.reject(~torch.isfinite(tensor), tensor, name, "expected a finite number")
        return tensor.expand(shape).clone()

    def as_count(self, value: int, name: str, least: int) -> int:
        """Validate an integer argument and return it; raise a ValueError if it is smaller than `least`."""
        return check_count(f"{type(self).__name__}: {name}", value, least)

    def common_dtype(self, *values: Values | None) -> torch.dtype:
        """Return the dtype of the first floating-point tensor among the values, or torch's default dtype.

        Raises:
            ValueError: If the dtype is neither float32 nor float64.
        """
        tensors = (v for v in values if isinstance(v, Tensor) and v.is_floating_point())
        dtype = next((v.dtype for v in tensors), torch.get_default_dtype())
        if dtype not in SUPPORTED_DTYPES:
            raise ValueError(f"{type(self).__name__}: the parameters are {dtype}; expected float32 or float64")
        return dtype

    def check_fit(self, name: str, value: Tensor) -> None:
        """Raise a ValueError if a fitted parameter is non-finite or overflows the units' dtype."""
        bad = ~torch.isfinite(value.to(self.dtype))
        self.reject(bad, value, name, "a constant column has no finite estimate; use smoothing > 0")

    @overload
    def checked_rows(self, x: Tensor, weights: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]: ...

    @overload
    def checked_rows(self, x: Rows, weights: Tensor | None, smoothing: float) -> tuple[Rows, Tensor]: ...

    def checked_rows(self, x: Rows, weights: Tensor | None, smoothing: float) -> tuple[Rows, Tensor]:
        """Validate the arguments of `fit_to`.

        Rows that are not in memory are validated when they are read. Unit types with `fits_in_parts` read such rows in
        parts.

        Args:
            x: States, of shape (rows, *state_shape).
            weights: Non-negative weights of the rows, of shape (rows,) (default: equal weights).
            smoothing: Non-negative number of pseudo-observations.

        Returns:
            The states and their weights.
        """
        name = type(self).__name__
        if not (isinstance(smoothing, int | float) and 0 <= smoothing < float("inf")):
            raise ValueError(f"{name}: smoothing is {smoothing!r}; expected a non-negative, finite number")
        if isinstance(x, LazyRows):
            x = x.mapped(lambda part: self.check_states(torch.from_numpy(part).to(self.device)).detach().cpu().numpy())
            weights = torch.ones(len(x), dtype=self.dtype, device=self.device) if weights is None else weights
            return x, weights
        x = self.check_states(x).detach()
        if x.dim() != 1 + len(self.state_shape) or len(x) == 0:
            raise ValueError(
                f"{name}: x has shape {tuple(x.shape)}; expected at least one row of shape {self.state_shape}"
            )
        if weights is None:
            return x, x.new_ones(len(x))
        weights = torch.as_tensor(weights, dtype=x.dtype, device=x.device)
        if weights.shape != (len(x),):
            shape = tuple(weights.shape)
            raise ValueError(f"{name}: weights has shape {shape}; expected ({len(x)},), one weight for each row")
        self.reject(
            ~(torch.isfinite(weights) & (weights >= 0)), weights, "weights", "expected a non-negative, finite number"
        )
        if weights.sum() == 0:
            raise ValueError(f"{name}: all weights are 0; expected at least one positive weight")
        return x, weights
