"""The explicit iteration, which inserts the previous moments of all neighbors into the equations of a layer."""

from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.solver.schemes.couplings import Couplings
from tapmachine.solver.schemes.process import MeanFieldProcess, choose, from_below
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.solver.schemes.mean_field import MeanField


class DampedState(NamedTuple):
    """Moments, the tilts that produce them, the free energy, the last residual, and the next step length."""

    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    free_energy: Tensor
    residual: Tensor
    size: Tensor
    unnormalizable: Tensor


SMALLEST_SIZE = 2.0**-20
FIXED_SWEEPS = 4  # sweeps per step with a fixed damping


@final
class DampedDescent(MeanFieldProcess):
    """Explicit updates of the tilts, of the odd layers and then of the even layers [alg:rbmInf].

    All units of a pairwise machine are updated together. By default, the step length of each particle is halved until
    F decreases. Moving the tilts toward the values required by the equations is a descent direction of F. The gradient
    of F with respect to the moments is the difference between these values and the current tilts, and the derivative
    of the moments with respect to the tilts is a covariance matrix. A sufficiently small step therefore lowers F for
    every machine and every order of the expansion. The step length increases again after successful steps.

    With a fixed damping d, the new tilts are a weighted average of the previous ones (weight d) and the required ones
    (weight 1 − d), as in the paper for d = 0. Convergence is not guaranteed.
    """

    def __init__(self, equations: "MeanField", couplings: Couplings, damping: float | None = None) -> None:
        super().__init__(equations, couplings)
        self.damping = damping
        self.sweeps_per_step = 1 if damping is None else FIXED_SWEEPS

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> DampedState:
        first, tilts = from_below(layers, self.couplings.weights, moments), [Tilt(0.0, 0.0)] * len(layers)
        failed = torch.zeros(len(first[0].mean), dtype=torch.bool, device=first[0].mean.device)
        for index in (*self.odd, *self.even):
            tilts[index] = self.equations.tilt(layers, self.couplings, index, first)
            first[index] = layers[index].moments(tilts[index])
            failed = self.add_failures(failed, index, tilts[index], first[index])
        infinite = torch.full_like(first[0].mean.flatten(1)[:, 0], torch.inf)
        value = infinite if self.damping is not None else self.equations.value(layers, self.couplings, first, tilts)
        return DampedState(tuple(first), tuple(tilts), value, infinite, torch.ones_like(infinite), failed)

    def moments(self, state: DampedState) -> list[Moments]:
        return list(state.moments)

    def tilts(self, state: DampedState) -> list[Tilt]:
        return list(state.tilts)

    def sweep(self, layers: list[Units], state: DampedState, size: Tensor | float) -> DampedState:
        """Move the tilts of each layer once toward the values required by the equations, by a fraction `size`."""
        moments, tilts, failed = list(state.moments), list(state.tilts), state.unnormalizable
        for index in (*self.odd, *self.even):
            target = self.equations.tilt(layers, self.couplings, index, moments, tilts)
            step = size if isinstance(size, float) else size.view(-1, *[1] * (moments[index].mean.dim() - 1))
            tilts[index] = Tilt(*(a + step * (b - a) for a, b in zip(tilts[index], target, strict=True)))
            moments[index] = layers[index].moments(tilts[index])
            failed = self.add_failures(failed, index, tilts[index], moments[index])
        return state._replace(moments=tuple(moments), tilts=tuple(tilts), unnormalizable=failed)

    def step(self, layers: list[Units], state: DampedState) -> tuple[DampedState, Tensor]:
        if self.damping is not None:
            for _ in range(FIXED_SWEEPS):
                last, state = state, self.sweep(layers, state, 1 - self.damping)
            return state, self.change(list(last.moments), list(state.moments))
        moved = self.sweep(layers, state, state.size)
        value = self.equations.value(layers, self.couplings, list(moved.moments), list(moved.tilts))
        residual = self.change(list(state.moments), list(moved.moments)) / state.size**2
        noise = 100 * torch.finfo(residual.dtype).eps * (1 + value.abs())
        rises = value > state.free_energy + noise
        # If the change in F is within rounding errors, the residual must decrease instead.
        stalls = (value > state.free_energy - noise) & (residual > state.residual)
        # A step to non-finite values is rejected unless it is the shortest or the values were non-finite before.
        leaves = ~torch.isfinite(value) & torch.isfinite(state.free_energy) & (state.size > SMALLEST_SIZE)
        worse = rises | stalls | leaves
        longer, shorter = (1.25 * state.size).clamp(max=1.0), (0.5 * state.size).clamp(min=SMALLEST_SIZE)
        new = moved._replace(free_energy=value, residual=residual, size=longer)
        old = state._replace(size=shorter, residual=2 * state.residual)
        kept: DampedState = choose(~worse, new, old)
        return kept, torch.where(worse, torch.finfo(residual.dtype).max, residual)
