"""Wrappers for clamped units and for units with evidence; they share the parameters of the original units."""

from typing import Any, NoReturn, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.units.base import Units
from tapmachine.units.numerics.third_cumulants import Slopes


def _of_base(name: str) -> Any:
    """Return a property, or a method, of the wrapped units."""
    return property(lambda units: getattr(units.base, name))


class Conditioned(Units):
    """Base class for wrappers that condition units on evidence or on fixed values.

    Properties of states and reactions are those of the wrapped units.

    Args:
        base: Units to wrap.
    """

    def __init__(self, base: Units) -> None:
        super().__init__(base.n)
        self.base = base

    # The states of the units, and how the neighbors act on them, do not depend on the evidence.
    support = _of_base("support")
    is_categorical = _of_base("is_categorical")
    has_two_states = _of_base("has_two_states")
    has_counts = _of_base("has_counts")
    state_shape = _of_base("state_shape")
    dtype = _of_base("dtype")
    device = _of_base("device")
    categorical_blocks = _of_base("categorical_blocks")
    unit_starts = _of_base("unit_starts")
    bounds = _of_base("bounds")
    is_bounded = _of_base("is_bounded")
    atoms = _of_base("atoms")
    n_states = _of_base("n_states")
    decode = _of_base("decode")
    check_states = _of_base("check_states")
    check_means = _of_base("check_means")
    with_clamped = _of_base("with_clamped")
    weight_products = _of_base("weight_products")
    reaction_shape = _of_base("reaction_shape")
    reaction_precision = _of_base("reaction_precision")
    reaction_energy = _of_base("reaction_energy")
    tilt_with_reaction = _of_base("tilt_with_reaction")

    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: conditioned units cannot be fitted; fit the original units")

    def _evidence(self, value: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        """Validate the shape of evidence, which is shared by all particles or has one row per particle."""
        if value.dim() > 1 + len(shape) or tuple(value.shape[-len(shape) :]) != shape:
            batched = ", ".join(["K", *map(str, shape)])
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {shape} or ({batched})")
        return value.detach()


def row_count(base: Units, *batched: tuple[Tensor, int]) -> int | None:
    """Return the number of rows of evidence; None if all particles share the evidence.

    Args:
        base: Units that may already be conditioned on rows of evidence.
        batched: Pairs of a tensor and the number of dimensions it has without a row dimension.

    Raises:
        ValueError: If the numbers of rows differ.
    """
    counts = {len(value) for value, dims in batched if value.dim() > dims}
    counts |= {base.n_rows} if base.n_rows is not None else set()
    if len(counts) > 1:
        raise ValueError(f"evidence has inconsistent numbers of rows: {sorted(counts)}")
    return counts.pop() if counts else None


def _pick(value: Tensor, dims: int, index: Tensor) -> Tensor:
    return value[index] if value.dim() > dims else value


@final
class Tilted(Conditioned):
    """Wrapper that adds evidence to units, so that their unnormalized prior is P(x) exp(Dx − ½Ex²)."""

    field: Tensor
    precision: Tensor

    def __init__(self, base: Units, evidence: Tilt, validate: bool = True) -> None:
        super().__init__(base)
        if not isinstance(evidence, Tilt):
            raise ValueError(f"evidence is a {type(evidence).__name__}; expected a Tilt")
        for name, value in zip(Tilt._fields, evidence, strict=True):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != base.dtype:
                raise ValueError(
                    f"evidence.{name} is {value.dtype}, but the units are {base.dtype}; convert it with .to()"
                )
            if isinstance(value, int | float):  # filled on the device, since a copy to a GPU cannot be captured
                value = torch.full((), value, dtype=base.dtype, device=base.device)
            tensor = torch.as_tensor(value, dtype=base.dtype, device=base.device)
            tensor = tensor.expand(base.state_shape) if tensor.dim() == 0 else tensor
            tensor = self._evidence(tensor, f"evidence.{name}", base.state_shape)
            if validate:  # selected rows were validated before, and reading values synchronizes with a GPU
                self.reject(~torch.isfinite(tensor), tensor, f"evidence.{name}", "expected a finite number")
            self.register_buffer(name, tensor, persistent=False)
        _ = self.n_rows

    @property
    def n_rows(self) -> int | None:
        dims = len(self.state_shape)
        return row_count(self.base, (self.field, dims), (self.precision, dims))

    def rows(self, index: Tensor) -> Units:
        evidence = Tilt(*(_pick(z, len(self.state_shape), index) for z in (self.field, self.precision)))
        return Tilted(self.base.rows(index), evidence, validate=False)

    def tail_precision(self) -> Tensor:
        return self.base.tail_precision() + (0.0 if self.is_categorical else self.precision)

    def _add(self, tilt: Tilt) -> Tilt:
        field, precision = self.unpack(tilt)
        return Tilt(field + self.field, precision + self.precision)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        exponent = x * (self.field - 0.5 * self.precision * x)
        return self.base.log_prior(x, validate=False) + self.per_unit(exponent)

    def field_with_mean(self, mean: Tensor) -> Tensor:
        # Units with q states solve for all fields at once, and a precision only shifts their fields.
        if not self.is_categorical:
            return super().field_with_mean(mean)
        return self.base.field_with_mean(mean) - self.field + 0.5 * self.precision

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self.base.log_partition(self._add(tilt))

    def moments(self, tilt: Tilt) -> Moments:
        return self.base.moments(self._add(tilt))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        return self.base.third_cumulant(self._add(tilt))

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        return self.base.third_cumulant_slopes(self._add(tilt))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self.base.normalizable(self._add(tilt))

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        return self.base.sample(self._add(tilt), generator)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        mean, variance = moments
        exponent = self.field * mean - 0.5 * self.precision * (mean**2 + variance)
        return self.base.divergence(self._add(tilt), moments) - self.per_unit(exponent)

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        given = Tilt(0.0, 0.0) if evidence is None else evidence
        return self.base.tilt_with_reaction(
            field, reaction, mean, Tilt(given.field + self.field, given.precision + self.precision)
        )

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        return self.base.respond(field + self.field, reaction, mean, precision + self.precision)

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, precision = received
        total = Received(field + self.field, reaction, precision + self.precision)
        moments, total_field = self.base.settle(total, start + self.field, steps)
        return moments, total_field - self.field


@final
class Clamped(Conditioned):
    """Wrapper that clamps some or all units of a layer to fixed values."""

    values: Tensor
    mask: Tensor

    def __init__(self, base: Units, x: Tensor, mask: Tensor | None = None, validate: bool = True) -> None:
        super().__init__(base)
        if mask is not None and not (isinstance(mask, Tensor) and mask.dtype == torch.bool):
            raise ValueError("mask is not a bool tensor; expected a bool tensor that is True for clamped units")
        self.holds_all = mask is None or bool(mask.all())
        mask = torch.ones(base.n, dtype=torch.bool, device=base.device) if mask is None else mask
        self.register_buffer("mask", self._evidence(mask.to(base.device), "mask", (base.n,)), persistent=False)
        values = base.check_states(self._filled(x)) if validate else x
        values = self._evidence(values.to(base.device), "x", base.state_shape)
        self.register_buffer("values", values, persistent=False)
        _ = self.n_rows

    def _filled(self, x: Tensor) -> Tensor:
        """Replace the states of unclamped units, which may be NaN, with an arbitrary valid state."""
        if self.holds_all:
            return x
        if isinstance(x, Tensor) and not x.is_floating_point() and x.dim() and x.shape[-1] == self.n:
            row_count(self.base, (x, 1), (self.mask, 1))
            x = torch.where(self.mask, x.to(self.mask.device), 0)  # state indices; 0 is always valid
        values = self.base.check_states(x, validate=False)
        row_count(self.base, (values, len(self.state_shape)), (self.mask, 1))
        return torch.where(self._components(self.mask), values.to(self.mask.device), self.base.any_state())

    def _components(self, of_units: Tensor) -> Tensor:
        """Expand a mask of units to the components of their states."""
        return of_units.unsqueeze(-1) if self.is_categorical else of_units

    def _mix(self, held: Tensor | float, free: Tensor) -> Tensor:
        return torch.where(self._components(self.mask), held, free)

    def with_clamped(self, x: Tensor) -> Tensor:
        return self._mix(self.values, self.base.with_clamped(x))

    def tail_precision(self) -> Tensor:
        return torch.where(self.mask, torch.inf, self.base.tail_precision())

    @property
    def n_rows(self) -> int | None:
        return row_count(self.base, (self.values, len(self.state_shape)), (self.mask, 1))

    def rows(self, index: Tensor) -> Units:
        values = _pick(self.values, len(self.state_shape), index)
        mask = None if self.holds_all else _pick(self.mask, 1, index)
        return Clamped(self.base.rows(index), values, mask, validate=False)

    def n_states(self) -> list[int] | None:
        held = self.mask.reshape(-1, self.n).all(0)[self.base.unit_starts].tolist()
        free = self.base.n_states()
        if free is None:
            return [1] * len(held) if all(held) else None
        return [1 if clamped else count for clamped, count in zip(held, free, strict=True)]

    def decode(self, digits: Tensor) -> Tensor:
        shape = digits.shape[:-1] + self.state_shape
        return self.values.expand(shape) if self.holds_all else self._mix(self.values, self.base.decode(digits))

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        """Compute ln P(x) of the original units.

        Raises:
            ValueError: If x differs from the value of a clamped unit.
        """
        x = self.check_states(x, validate)
        if validate:
            self.reject(self._mix(x != self.values, torch.zeros_like(x)) > 0, x, "x", "expected the clamped value")
        return self.base.log_prior(x, validate=False)

    def log_partition(self, tilt: Tilt) -> Tensor:
        field, precision = self.unpack(tilt)
        exponent = self.values * (field - 0.5 * precision * self.values)
        held = self.base.log_prior(self.values, validate=False) + self.per_unit(exponent)
        return held if self.holds_all else torch.where(self.mask, held, self.base.log_partition(tilt))

    def field_with_mean(self, mean: Tensor) -> Tensor:
        return self._mix(0.0, self.base.field_with_mean(mean))

    def _hold(self, shape: torch.Size) -> Moments:
        mean = self.values.expand(shape)
        return Moments(mean, torch.zeros_like(mean))

    def _hold_some(self, free: Moments) -> Moments:
        return Moments(self._mix(self.values, free.mean), self._mix(0.0, free.variance))

    def moments(self, tilt: Tilt) -> Moments:
        if self.holds_all:
            return self._hold(self.unpack(tilt)[0].shape)
        return self._hold_some(self.base.moments(tilt))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        return self._mix(0.0, self.base.third_cumulant(tilt))

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        return Slopes(*(self._mix(0.0, z) for z in self.base.third_cumulant_slopes(tilt)))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self.finite(tilt) if self.holds_all else self.mask | self.base.normalizable(tilt)

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        if self.holds_all:
            return self.values.expand(self.unpack(tilt)[0].shape)
        return self._mix(self.values, self.base.sample(tilt, generator))

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        held = -self.base.log_prior(self.values, validate=False)
        if self.holds_all:
            return held.expand(*moments.mean.shape[: moments.mean.dim() - len(self.state_shape)], self.n)
        return torch.where(self.mask, held, self.base.divergence(tilt, moments))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        if self.holds_all:
            return self._hold(field.shape)
        return self._hold_some(self.base.respond(field, reaction, mean, precision))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        if self.holds_all:
            return self._hold(received.field.shape), received.field
        moments, tilt_field = self.base.settle(received, start, steps)
        return self._hold_some(moments), tilt_field


def unconditioned(units: Units) -> Units:
    """Return the original units without clamped values or evidence."""
    while isinstance(units, Conditioned):
        units = units.base
    return units


def lowest_precision(units: Units, fraction: float) -> Tensor:  # state_shape
    """Return the lower bound on the precision of tilts during an iteration.

    Args:
        units: Units, possibly conditioned.
        fraction: Magnitude of the bound, relative to the precision of the prior's tails.
    """
    base = unconditioned(units)
    if units.is_categorical:
        return torch.full(units.state_shape, -torch.inf, dtype=units.dtype, device=units.device)
    return -fraction * base.tail_precision()
