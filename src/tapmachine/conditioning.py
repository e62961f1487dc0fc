"""Machines with some units clamped to values or tilted by evidence, sharing the parameters of the free machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units


def clamp(machine: BoltzmannMachine, x: Tensor, layer: int = 0, mask: Tensor | None = None) -> BoltzmannMachine:
    """The machine with a layer's units held at x.

    Its free energy is −ln of the joint weight of x and everything else that is possible, so that
    ln P(x) = F(free) − F(clamped).

    The parameters are the machine's own: what moves or converts the one (`.to()`, `.double()`), does so to the other.

    Args:
        machine: any machine.
        x: the values, of shape (K, n) for one row each for K particles, or (n,) for all of them.
        layer: the layer to clamp.
        mask: which units are clamped, of shape (n,) or (K, n); the others stay free, and x is not looked at there.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, clamp, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> seen = clamp(machine, torch.tensor([1.0, 0.0, 0.0]), mask=torch.tensor([True, True, False]))
        >>> solve(seen).moments[0].mean.round(decimals=2)
        tensor([[1.0000, 0.0000, 0.5000]])
    """
    with _naming(layer):
        return _replace(machine, layer, Clamped(_layer(machine, layer), x, mask))


def condition(machine: BoltzmannMachine, evidence: Tilt, layer: int = 0) -> BoltzmannMachine:
    """The machine with a layer's priors multiplied by exp(Dx − ½Ex²): what a noisy observation says about the units.

    Its free energy is −ln of the average of that factor, times Z: F(conditioned) − F(free) is minus the log-evidence.
    Gaussian noise of deviation σ on an observation y is Tilt(y/σ², 1/σ²); a bit y ∈ {0, 1} that was flipped with
    probability p is Tilt(ln((1 − p)/p)(2y − 1), 0). The parameters are the machine's own, as for `clamp`.

    Args:
        machine: any machine.
        evidence: the field D and the precision E, of shape (K, n) for K particles, or (n,), or numbers.
        layer: the layer it is about.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Tilt, condition, rbm, solve
        >>> machine = rbm(Binary(3), Binary(2))
        >>> noisy = condition(machine, Tilt(field=torch.tensor([2.0, -2.0, 0.0]), precision=0.0))
        >>> solve(noisy).moments[0].mean.round(decimals=2)
        tensor([[0.8800, 0.1200, 0.5000]])
    """
    with _naming(layer):
        return _replace(machine, layer, Tilted(_layer(machine, layer), evidence))


def _layer(machine: BoltzmannMachine, layer: int) -> Units:
    if not (isinstance(layer, int) and 0 <= layer < len(machine.layers)):
        raise ValueError(f"the machine has {len(machine.layers)} layers, from 0")
    return machine.units()[layer]


@contextmanager
def _naming(layer: int) -> Iterator[None]:
    """Lets errors name the layer."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {layer}: {error}") from None


def _replace(machine: BoltzmannMachine, layer: int, units: Units) -> BoltzmannMachine:
    layers = machine.units()
    layers[layer] = units
    conditioned = machine.with_layers(layers)
    _ = conditioned.n_rows  # two layers with different numbers of rows are an error here, not later
    return conditioned


class _Conditioned(Units):
    """Units that behave as others do, but for what they are conditioned on."""

    def __init__(self, base: Units) -> None:
        super().__init__(base.n)
        self.base = base

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.base.state_shape

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.base.bounds()

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        return self.base.check_states(x, validate)

    def check_means(self, mean: Tensor) -> Tensor:
        return self.base.check_means(mean)

    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: fit the units themselves, not the conditioned ones")

    def _evidence(self, value: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        """Evidence of the given trailing shape, for one particle or for a batch of them."""
        if value.dim() > 1 + len(shape) or tuple(value.shape[-len(shape) :]) != shape:
            found, batched = tuple(value.shape), ", ".join(["K", *map(str, shape)])
            raise ValueError(f"{name} has shape {found}; it must be {shape} or ({batched})")
        return value.detach()


def _row_count(base: Units, *batched: tuple[Tensor, int]) -> int | None:
    """The number of rows of evidence: that of the units below, and of tensors that have, without rows, so many dims."""
    counts = {len(value) for value, dims in batched if value.dim() > dims}
    counts |= {base.n_rows} if base.n_rows is not None else set()
    if len(counts) > 1:
        raise ValueError(f"evidence has different numbers of rows, {sorted(counts)}")
    return counts.pop() if counts else None


def _pick(value: Tensor, dims: int, index: Tensor) -> Tensor:
    return value[index] if value.dim() > dims else value


@final
class Tilted(_Conditioned):
    """Units with evidence on them: a prior P(x) exp(Dx − ½Ex²), which is not normalised."""

    field: Tensor
    precision: Tensor

    def __init__(self, base: Units, evidence: Tilt) -> None:
        super().__init__(base)
        if not isinstance(evidence, Tilt):
            raise ValueError(f"evidence is a {type(evidence).__name__}; it must be a Tilt")
        for name, value in zip(Tilt._fields, evidence, strict=True):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != base.dtype:
                raise ValueError(f"evidence.{name} is {value.dtype}, but the units are {base.dtype}; convert it")
            tensor = torch.as_tensor(value, dtype=base.dtype, device=base.device)
            tensor = tensor.expand(base.state_shape) if tensor.dim() == 0 else tensor
            tensor = self._evidence(tensor, f"evidence.{name}", base.state_shape)
            self.reject(~torch.isfinite(tensor), tensor, f"evidence.{name}", "it must be finite")
            self.register_buffer(name, tensor, persistent=False)
        _ = self.n_rows

    @property
    def n_rows(self) -> int | None:
        dims = len(self.state_shape)
        return _row_count(self.base, (self.field, dims), (self.precision, dims))

    def rows(self, index: Tensor) -> Units:
        evidence = Tilt(*(_pick(z, len(self.state_shape), index) for z in (self.field, self.precision)))
        return Tilted(self.base.rows(index), evidence)

    def hold(self, x: Tensor) -> Tensor:
        return self.base.hold(x)

    def n_states(self) -> list[int] | None:
        return self.base.n_states()

    def decode(self, digits: Tensor) -> Tensor:
        return self.base.decode(digits)

    def _add(self, tilt: Tilt) -> Tilt:
        field, precision = self.unpack(tilt)
        return Tilt(field + self.field, precision + self.precision)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        exponent = x * (self.field - 0.5 * self.precision * x)
        exponent = exponent.sum(-1) if len(self.state_shape) > 1 else exponent
        return self.base.log_prior(x, validate=False) + exponent

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self.base.log_partition(self._add(tilt))

    def moments(self, tilt: Tilt) -> Moments:
        return self.base.moments(self._add(tilt))

    def normalisable(self, tilt: Tilt) -> Tensor:
        return self.base.normalisable(self._add(tilt))

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        return self.base.sample(self._add(tilt), generator)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        mean, variance = moments
        exponent = self.field * mean - 0.5 * self.precision * (mean**2 + variance)
        exponent = exponent.sum(-1) if len(self.state_shape) > 1 else exponent
        return self.base.divergence(self._add(tilt), moments) - exponent

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        return self.base.respond(field + self.field, reaction, mean, precision + self.precision)

    def settle(
        self,
        field: Tensor,
        reaction: Tensor,
        start: Tensor,
        precision: Tensor | float = 0.0,
        steps: int | None = None,
    ) -> tuple[Moments, Tensor]:
        moments, own = self.base.settle(
            field + self.field, reaction, start + self.field, precision + self.precision, steps
        )
        return moments, own - self.field


@final
class Clamped(_Conditioned):
    """Units of which some, or all, are held at given values."""

    values: Tensor
    mask: Tensor

    def __init__(self, base: Units, x: Tensor, mask: Tensor | None = None, validate: bool = True) -> None:
        super().__init__(base)
        if mask is not None and not (isinstance(mask, Tensor) and mask.dtype == torch.bool):
            raise ValueError("mask must be a tensor of bool")
        self.holds_all = mask is None or bool(mask.all())
        mask = torch.ones(base.n, dtype=torch.bool) if mask is None else mask
        self.register_buffer("mask", self._evidence(mask.to(base.device), "mask", (base.n,)), persistent=False)
        values = self._evidence(self._filled(x).to(base.device), "x", base.state_shape)
        if validate:
            base.check_states(values)
        self.register_buffer("values", values, persistent=False)
        _ = self.n_rows

    def _filled(self, x: Tensor) -> Tensor:
        """The states with those that are not clamped replaced by any: they may be NaN, and are never looked at."""
        if self.holds_all:
            return self.base.check_states(x)
        if isinstance(x, Tensor) and not x.is_floating_point() and x.dim() and x.shape[-1] == self.n:
            _row_count(self.base, (x, 1), (self.mask, 1))
            x = torch.where(self.mask, x.to(self.mask.device), 0)  # numbers of states; 0 is always one
        values = self.base.check_states(x, validate=False)
        _row_count(self.base, (values, len(self.state_shape)), (self.mask, 1))
        return torch.where(self._components(self.mask), values.to(self.mask.device), self._any_state())

    def _any_state(self) -> Tensor:
        no_tilt = Tilt(torch.zeros(self.state_shape, dtype=self.base.dtype, device=self.base.device), 0.0)
        return self.base.sample(no_tilt, torch.Generator(self.base.device).manual_seed(0))

    def _components(self, of_units: Tensor) -> Tensor:
        """What is true of units, for the components of their states."""
        return of_units.unsqueeze(-1) if len(self.state_shape) > 1 else of_units

    def _mix(self, held: Tensor | float, free: Tensor) -> Tensor:
        return torch.where(self._components(self.mask), held, free)

    def hold(self, x: Tensor) -> Tensor:
        return self._mix(self.values, self.base.hold(x))

    @property
    def n_rows(self) -> int | None:
        return _row_count(self.base, (self.values, len(self.state_shape)), (self.mask, 1))

    def rows(self, index: Tensor) -> Units:
        values = _pick(self.values, len(self.state_shape), index)
        mask = None if self.holds_all else _pick(self.mask, 1, index)
        return Clamped(self.base.rows(index), values, mask, validate=False)

    def n_states(self) -> list[int] | None:
        held = self.mask.reshape(-1, self.n).all(0).tolist()
        free = self.base.n_states()
        if free is None:
            return [1] * self.n if all(held) else None
        return [1 if clamped else count for clamped, count in zip(held, free, strict=True)]

    def decode(self, digits: Tensor) -> Tensor:
        shape = digits.shape[:-1] + self.state_shape
        return self.values.expand(shape) if self.holds_all else self._mix(self.values, self.base.decode(digits))

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        """ln P(x) of the units that these are made of; x must agree with what they are held at."""
        x = self.check_states(x, validate)
        if validate:
            self.reject(self._mix(x != self.values, torch.zeros_like(x)) > 0, x, "x", "the unit is clamped elsewhere")
        return self.base.log_prior(x, validate=False)

    def log_partition(self, tilt: Tilt) -> Tensor:
        field, precision = self.unpack(tilt)
        exponent = self.values * (field - 0.5 * precision * self.values)
        exponent = exponent.sum(-1) if len(self.state_shape) > 1 else exponent
        held = self.base.log_prior(self.values, validate=False) + exponent
        return held if self.holds_all else torch.where(self.mask, held, self.base.log_partition(tilt))

    def _hold(self, shape: torch.Size) -> Moments:
        mean = self.values.expand(shape)
        return Moments(mean, torch.zeros_like(mean))

    def _hold_some(self, free: Moments) -> Moments:
        return Moments(self._mix(self.values, free.mean), self._mix(0.0, free.variance))

    def moments(self, tilt: Tilt) -> Moments:
        if self.holds_all:
            return self._hold(self.unpack(tilt)[0].shape)
        return self._hold_some(self.base.moments(tilt))

    def normalisable(self, tilt: Tilt) -> Tensor:
        return super().normalisable(tilt) if self.holds_all else self.mask | self.base.normalisable(tilt)

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

    def settle(
        self,
        field: Tensor,
        reaction: Tensor,
        start: Tensor,
        precision: Tensor | float = 0.0,
        steps: int | None = None,
    ) -> tuple[Moments, Tensor]:
        if self.holds_all:
            return self._hold(field.shape), field
        moments, own = self.base.settle(field, reaction, start, precision, steps)
        return self._hold_some(moments), own
