"""Layers that combine several unit types."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.units.base import Units
from tapmachine.units.conditioned import Conditioned
from tapmachine.units.numerics.third_cumulants import Slopes
from tapmachine.units.support import BITS, FiniteSet, Interval, Simplex, Support


@final
class Mixed(Units):
    """A layer that consists of several blocks, each with units of one type.

    The blocks are concatenated in order and are accessible as `units.blocks`. A `Categorical` unit with q states takes
    up q columns, which contain its one-hot state. Its ln P and ln Z are stored in the first column, with 0 in the other
    columns.

    Args:
        blocks: Blocks of units with the same dtype and device.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Gaussian, Mixed, Tilt
        >>> units = Mixed([Gaussian(1, field=2.0), Binary(2)])
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.zeros(3), precision=0.0)).mean
        tensor([2.0000, 0.5000, 0.5000])
    """

    is_categorical = False

    def __init__(self, blocks: Sequence[Units]) -> None:
        if isinstance(blocks, Units) or len(blocks) == 0:
            raise ValueError("Mixed: expected a non-empty list of blocks, such as [Gaussian(4), Binary(2)]")
        for index, block in enumerate(blocks):
            if not isinstance(block, Units) or isinstance(block, Mixed | Conditioned):
                raise ValueError(f"Mixed: block {index} is a {type(block).__name__}; expected units such as Binary(n)")
            for name in ("dtype", "device"):
                actual, expected = getattr(block, name), getattr(blocks[0], name)
                if actual != expected:
                    raise ValueError(
                        f"Mixed: the {name} of block {index} is {actual}, but that of block 0 is {expected}"
                    )
        super().__init__(sum(math.prod(block.state_shape) for block in blocks))
        self.blocks = nn.ModuleList(blocks)

    @property
    def parts(self) -> list[Units]:
        return list(self.blocks)  # type: ignore[arg-type]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    # ----- states

    @property
    def categorical_blocks(self) -> list[tuple[int, int, int]]:
        starts = accumulate(self.sizes, initial=0)
        blocks = zip(starts, self.parts, strict=False)
        return [(i, b.n, b.state_shape[1]) for i, b in blocks if b.is_categorical]

    @property
    def unit_starts(self) -> list[int]:
        starts: list[int] = []
        first = 0
        for block, size in zip(self.parts, self.sizes, strict=True):
            starts += range(first, first + size, size // block.n)
            first += size
        return starts

    @property
    def support(self) -> Support:
        """Common support of all blocks; if supports differ, the smallest finite set or interval that contains them."""
        supports = {BITS if isinstance(block.support, Simplex) else block.support for block in self.parts}
        if len(supports) == 1:
            return supports.pop()
        values = {value for support in supports if isinstance(support, FiniteSet) for value in support.values}
        if all(isinstance(support, FiniteSet) for support in supports):
            return FiniteSet(tuple(sorted(values)))
        return Interval(min(s.bounds[0] for s in supports), max(s.bounds[1] for s in supports))

    @property
    def has_two_states(self) -> bool:
        return len({block.support for block in self.parts}) == 1 and self.parts[0].has_two_states

    @cached_property
    def has_counts(self) -> bool:
        return any(block.has_counts for block in self.parts)

    def per_unit(self, terms: Tensor) -> Tensor:
        """Sum the terms of each categorical unit over its components; the sum is stored at the first component."""
        return self._each(lambda block, part: block.per_unit(part), terms)

    def at_first_component(self, block: Units, of_units: Tensor) -> Tensor:  # (..., n_b) -> (..., size)
        """Place the value of each unit of a block at the unit's first component; other components are set to 0."""
        return _flat(block, of_units, of_units.dim() + 1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        lower, upper = zip(*(block.bounds() for block in self.parts), strict=True)
        return self._joined(lower), self._joined(upper)

    def tail_precision(self) -> Tensor:
        tails = [block.tail_precision() for block in self.parts]
        return self._joined([t[0] if b.is_categorical else t for b, t in zip(self.parts, tails, strict=True)])

    def _joined(self, values: Sequence[Tensor]) -> Tensor:  # () or (n_b,) each -> (n,)
        return torch.cat([value.expand(n) for value, n in zip(values, self.sizes, strict=True)])

    def n_states(self) -> list[int] | None:
        counts = [block.n_states() for block in self.parts]
        return None if None in counts else [count for block in counts for count in block or []]

    def decode(self, digits: Tensor) -> Tensor:
        parts = digits.split([block.n for block in self.parts], -1)
        states = [block.decode(part) for block, part in zip(self.parts, parts, strict=True)]
        return torch.cat([_flat(block, x, x.dim()) for block, x in zip(self.parts, states, strict=True)], -1)

    def nearest_states(self, mean: Tensor) -> Tensor:
        return self._each(lambda block, part: block.nearest_states(part), mean)

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        return self._each(lambda block, part: block.check_states(part, validate), self.as_states(x))

    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        for block, part in self._split([x]):
            block.fit_to(part, weights, smoothing)
        return self

    # ----- effects of a tilt, block by block

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        return self._each(lambda block, part: block.log_prior(part, validate), self.as_states(x))

    def _tilts(self, tilt: Tilt) -> list[tuple[Units, Tilt]]:
        """Split a tilt into pairs of a block and its tilt; a scalar precision stays a scalar, which is faster."""
        field, precision = self.unpack(tilt)
        given = tilt.precision if isinstance(tilt.precision, int | float) else precision
        precisions = self._precisions(given, field)
        return [(b, Tilt(f, a)) for (b, f), a in zip(self._split([field]), precisions, strict=True)]

    def _each_tilted(self, function: Callable[[Units, Tilt], Any], tilt: Tilt) -> Tensor:
        parts = self._tilts(tilt)
        return torch.cat([_flat(b, function(b, part), torch.as_tensor(part.field).dim()) for b, part in parts], -1)

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self._each_tilted(lambda block, part: block.log_partition(part), tilt)

    def moments(self, tilt: Tilt) -> Moments:
        return Moments(*self._joined_results((block, block.moments(part)) for block, part in self._tilts(tilt)))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        return self._each_tilted(lambda block, part: block.third_cumulant(part), tilt)

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        parts = self._tilts(tilt)
        return Slopes(*self._joined_results((block, block.third_cumulant_slopes(part)) for block, part in parts))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self._each_tilted(lambda block, part: block.normalizable(part), tilt)

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        return self._each_tilted(lambda block, part: block.sample(part, generator), tilt)

    @property
    def has_inversion(self) -> bool:
        return all(block.has_inversion for block in self.blocks)

    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor | None:
        if not self.has_inversion:
            return None
        uniforms = iter([part for _, part in self._split([uniform])])

        def draw(block: Units, part: Tilt) -> Tensor | None:
            u = next(uniforms)
            return block.draw(part, u[..., 0] if block.is_categorical else u)

        return self._each_tilted(draw, tilt)

    def mean_in(self, field: Tensor) -> Tensor:
        return self._each(lambda block, part: block.mean_in(part), field)

    def log_prior_of_rows(self, x: Tensor) -> Tensor:
        return self._sum(lambda block, part: block.log_prior_of_rows(part), x)

    def log_partition_of_rows(self, field: Tensor) -> Tensor:
        return self._sum(lambda block, part: block.log_partition_of_rows(part), field)

    def log_partition_gain(self, before: Tensor, after: Tensor) -> Tensor:
        return self._sum(lambda block, *part: block.log_partition_gain(*part), before, after)

    def divergence(self, tilt: Tilt, moments: Moments) -> Tensor:
        of_blocks = iter([Moments(*part) for _, *part in self._split(moments)])
        return self._each_tilted(lambda block, part: block.divergence(part, next(of_blocks)), tilt)

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        precisions = self._precisions(precision, field)
        parts = zip(self._split([field, mean]), self._reactions(reaction), precisions, strict=True)
        return Moments(*self._joined_results((b, b.respond(f, kappa, guess, a)) for (b, f, guess), kappa, a in parts))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, precision = received
        parts = zip(
            self._split([field, start]), self._reactions(reaction), self._precisions(precision, field), strict=True
        )
        settled = [(block, block.settle(Received(b, kappa, a), guess, steps)) for (block, b, guess), kappa, a in parts]
        mean, variance, total = self._joined_results((block, (*moments, field)) for block, (moments, field) in settled)
        return Moments(mean, variance), total

    # ----- reaction: one vector for all blocks, with the flattened matrices of categorical units

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        return (sum(math.prod(block.reaction_shape) for block in self.parts),)

    def _reactions(self, reaction: Tensor) -> list[Tensor]:
        shapes = [block.reaction_shape for block in self.parts]
        parts = reaction.split([math.prod(shape) for shape in shapes], -1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]

    def weight_products(self, weights: Tensor) -> Tensor:
        parts = weights.split(self.sizes, -1)
        return torch.cat([b.weight_products(part) for b, part in zip(self.parts, parts, strict=True)], -1)

    def reaction_precision(self, reaction: Tensor) -> Tensor:
        parts = zip(self.parts, self._reactions(reaction), strict=True)
        return self._joined_results((block, (block.reaction_precision(kappa),)) for block, kappa in parts)[0]

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:
        parts = zip(self._split(moments), self._reactions(reaction), strict=True)
        return self._joined_results((b, (b.reaction_energy(kappa, Moments(*m)),)) for (b, *m), kappa in parts)[0]

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        given = [self._precisions(z, field) for z in (Tilt(0.0, 0.0) if evidence is None else evidence)]
        parts = zip(self._split([field, mean]), self._reactions(reaction), *given, strict=True)
        return Tilt(
            *self._joined_results(
                (b, b.tilt_with_reaction(f, kappa, guess, Tilt(d, e))) for (b, f, guess), kappa, d, e in parts
            )
        )

    def _precisions(self, value: Tensor | float, like: Tensor) -> list[Tensor | float]:
        """Split a precision into the parts of the blocks; a scalar is repeated."""
        if isinstance(value, int | float):
            return [value] * len(self.parts)
        return [part for _, part in self._split([value.expand_as(like)])]

    def field_with_mean(self, mean: Tensor) -> Tensor:
        return self._each(lambda block, part: block.field_with_mean(part), mean)

    def _split(self, tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
        """Split tensors by block; return tuples of a block and its parts, in the shape of the block's states."""
        parts = [tensor.expand(*tensor.shape[:-1], self.n).split(self.sizes, -1) for tensor in tensors]
        return [
            (block, *(part.unflatten(-1, block.state_shape) for part in of_block))
            for block, *of_block in zip(self.parts, *parts, strict=True)
        ]

    def _each(self, function: Callable[..., Any], *tensors: Tensor) -> Tensor:
        """Apply a function to each block and its parts of the tensors, and concatenate the results."""
        return torch.cat([_flat(part[0], function(*part), part[1].dim()) for part in self._split(tensors)], -1)

    def _joined_results(self, results: Iterable[tuple[Units, Sequence[Tensor]]]) -> list[Tensor]:
        """Concatenate the results of all blocks, each of which has the shape of the block's states."""
        flat = [[z.flatten(-len(block.state_shape)) for z in of_block] for block, of_block in results]
        return [torch.cat(parts, -1) for parts in zip(*flat, strict=True)]

    def _sum(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Apply a function to each block and its parts of the tensors, and sum the results over blocks, row by row."""
        results = [function(*part) for part in self._split(tensors)]
        return torch.stack(results).sum(0)


def _flat(block: Units, result: Tensor, n_dims: int) -> Tensor:  # (..., *state_shape) or (..., n) -> (..., size)
    """Flatten values of a block's states or units to columns, one for each component of the states.

    The value of a categorical unit is stored at its first component, except for masks, which are repeated.

    Args:
        block: Block of units.
        result: Values of the states or of the units.
        n_dims: Number of dimensions of the block's states.
    """
    if not block.is_categorical:
        return result
    if result.dim() == n_dims:
        return result.flatten(-2)
    if result.dtype == torch.bool:
        return result.repeat_interleave(block.state_shape[1], -1)
    others = result.new_zeros((*result.shape, block.state_shape[1] - 1))
    return torch.cat((result.unsqueeze(-1), others), -1).flatten(-2)
