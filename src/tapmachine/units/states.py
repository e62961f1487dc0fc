"""What the states of a layer of units are: support, shapes, bounds, enumeration, and their validation.

Error messages contain the index of the first invalid value.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import SUPPORTED_DTYPES, check_count, check_tensor
from tapmachine.data.rows import LazyRows, Rows, in_parts
from tapmachine.units.support import REAL_LINE, Lattice, Simplex, Support

Values = Tensor | float | Sequence[float]  # accepted values of parameters


class States(nn.Module):
    """Base class for a layer of `n` units whose values lie in `support`."""

    n: int
    _bounded: bool | None = None

    def extra_repr(self) -> str:
        return f"n={self.n}"

    @property
    def support(self) -> Support:
        """Set of values that each unit can take; the real line by default.

        Unit types can override this property with a class attribute, such as `support = Lattice()`. Conditioned units
        have the support of the original units.
        """
        return REAL_LINE

    @cached_property
    def is_categorical(self) -> bool:
        """Whether states are one-hot vectors, so that fields, means and states have shape (..., n, q)."""
        return isinstance(self.support, Simplex)

    @cached_property
    def has_two_states(self) -> bool:
        """Whether each unit has two numeric states, as in `Binary` and `Spin`."""
        return self.support.n_states == 2 and not self.is_categorical

    @cached_property
    def has_counts(self) -> bool:
        """Whether the layer contains count units, whose tilted priors may not be normalizable in TAP."""
        return isinstance(self.support, Lattice)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Trailing shape of states, fields and means: (n,), or (n, q) for units with q states."""
        return (self.n, self.support.n_states or 1) if self.is_categorical else (self.n,)

    @property
    def unit_starts(self) -> list[int]:
        """Index of each unit in tensors of shape (..., n)."""
        return list(range(self.n))

    @property
    def categorical_blocks(self) -> list[tuple[int, int, int]]:
        """First component, number of units and number of states for each block of categorical units."""
        return [(0, self.n, self.support.n_states or 1)] if self.is_categorical else []

    def per_unit(self, terms: Tensor) -> Tensor:  # (..., *state_shape) -> (..., n)
        """Sum terms over the components of each unit."""
        return terms.sum(-1) if self.is_categorical else terms

    def finite(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n), bool
        """Return a mask of the units for which the field and the precision of a tilt are finite."""
        field, precision = self.unpack(tilt)
        finite = torch.isfinite(field) & torch.isfinite(precision)
        return finite.all(-1) if self.is_categorical else finite

    # ----- bounds

    def bounds(self) -> tuple[Tensor, Tensor]:  # each () or state_shape
        """Return the smallest and largest value of each component of the states, possibly infinite."""
        lower, upper = self.support.bounds
        return self._scalar(lower), self._scalar(upper)

    def _scalar(self, value: float) -> Tensor:
        # Filled on the device, since a copy to a GPU cannot be captured.
        return torch.full((), value, dtype=self.dtype, device=self.device)

    def is_bounded(self) -> bool:
        """Return whether all bounds are finite; cached, since reading values synchronizes with a GPU."""
        if self._bounded is None:
            self._bounded = all(bool(torch.isfinite(bound).all()) for bound in self.bounds())
        return self._bounded

    def tail_precision(self) -> Tensor:  # (n,)
        """Return the precision V of the tails exp(−½Vx²) of priors on the real line; infinite for all other priors.

        If two neighboring layers have Gaussian tails, Z is finite only if the couplings between them are weak enough.
        """
        return torch.full((self.n,), torch.inf, dtype=self.dtype, device=self.device)

    # ----- enumeration

    def n_states(self) -> list[int] | None:
        """Return the number of states of each unit; None if a unit has infinitely many states."""
        count = self.support.n_states
        return None if count is None else [count] * self.n

    def decode(self, digits: Tensor) -> Tensor:  # (..., n), int64 -> (..., *state_shape)
        """Convert state indices to states.

        Args:
            digits: State index of each unit, from 0 to `n_states` − 1, or any non-negative integer on a lattice.
        """
        return self.support.decode(digits, self.dtype)

    def atoms(self) -> Tensor | None:  # (n_atoms,)
        """Return the values of an interval that have nonzero probability; None if there are none.

        At these values, `log_prior` is the logarithm of a probability. Elsewhere, it is the logarithm of a density.
        """
        values = self.support.atoms
        return torch.stack([self._scalar(value) for value in values]) if values else None

    # ----- data, in which states with q values are indices

    def to_data(self, states: Tensor) -> Tensor:  # (..., *state_shape) -> (..., n)
        """Convert states to the format of the data, in which the states of categorical units are indices."""
        return states.argmax(-1) if self.is_categorical else states

    def from_data(self, x: Tensor) -> Tensor:  # (K, n) or (K, *state_shape)
        """Convert complete rows of data to a format that `check_states` accepts: state indices become integers."""
        return x.long() if self.is_categorical and x.dim() == 2 else x

    def nearest_states(self, mean: Tensor) -> Tensor:  # (..., *state_shape) -> (..., *state_shape)
        """Return the states nearest to means; the most probable states of categorical units, and means on intervals."""
        if self.is_categorical:
            return one_hot(mean.argmax(-1), mean.shape[-1]).to(mean.dtype)
        if isinstance(self.support, Lattice):
            start, step = self.support.start, self.support.step
            return start + step * ((mean - start) / step).round()
        if self.support.n_states is None:
            return mean
        values = self.decode(torch.arange(self.support.n_states, device=mean.device).unsqueeze(-1).expand(-1, self.n))
        return values.gather(0, (mean - values.unsqueeze(1)).abs().argmin(0))

    def normalized(self, mean: Tensor) -> Tensor:  # (..., *state_shape) -> (..., *state_shape)
        """Rescale the probabilities of categorical units to sum to 1, after a change of dtype."""
        return mean / mean.sum(-1, keepdim=True) if self.is_categorical else mean

    # ----- dtype, device and tilts

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

    # ----- validation

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:  # (..., n) -> (..., n)
        """Validate states by the support, and return them in the units' dtype.

        Args:
            x: States, of shape (..., n).
            validate: Whether to check the values, which synchronizes with a GPU. If False, only the shape and the dtype
                are checked.

        Raises:
            ValueError: If a value is not in the support; the message gives the index of the first invalid value.
        """
        x = self.as_states(x)
        if validate and not torch.compiler.is_compiling():
            support, bounds = self.support, self.bounds()
            self.reject_states(lambda part: support.excludes(part, *bounds), x, support.requirement)
        return x

    def check_means(self, mean: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Validate means and return them in the units' dtype.

        Raises:
            ValueError: If a mean is outside the support; the message gives the index of the first invalid mean.
        """
        mean = self.as_states(mean)
        lower, upper = self.bounds()
        inside = (mean >= lower) & (mean <= upper) & torch.isfinite(mean)
        bounds = "" if lower.dim() or upper.dim() else f", {lower:g} to {upper:g}"
        self.reject(~inside, mean, "x", f"expected a mean inside the support{bounds}")
        return mean

    def as_states(self, x: Tensor) -> Tensor:
        """Convert states to the units' dtype; integer and bool tensors are accepted.

        Raises:
            ValueError: If the shape is wrong, or if x has a different floating-point dtype.
        """
        name = type(self).__name__
        try:
            x = check_tensor(x)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if x.dim() < len(self.state_shape) or tuple(x.shape[-len(self.state_shape) :]) != self.state_shape:
            raise ValueError(f"{name}: x has shape {tuple(x.shape)}; expected a shape ending in {self.state_shape}")
        if x.is_floating_point() and x.dtype != self.dtype:
            raise ValueError(f"{name}: x is {x.dtype}, but the units are {self.dtype}; convert one of them with .to()")
        return x.to(self.dtype)

    def reject_states(self, are_bad: Callable[[Tensor], Tensor], x: Tensor, requirement: str) -> None:
        """Raise a ValueError if a state is invalid; the message contains the index of the first invalid element."""
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
