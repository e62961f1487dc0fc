"""Sampling objectives: F of the machine clamped to the states of Gibbs chains instead of F of the free machine."""

from abc import abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine.gibbs_sampling import sweep_chain
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, clamped_free_energy, summed_over_odd_layers
from tapmachine.training.loss import Objective
from tapmachine.training.starts import Start
from tapmachine.units.numerics.strata import lattice, strata

POSTERIOR_SWEEPS = 10  # sweeps of the hidden layers of a deep machine given a row, which mix quickly
SETTLED = 200  # a chain restarts in step t with probability SETTLED/(SETTLED + t)²


class _Sampled(Objective):
    """F of the machine clamped to samples instead of F of the free one: its gradient is an average over the samples.

    In a deep machine the even layers are clamped, and the odd ones between them are summed over. The same applies given
    the data: layers 2, 4, … are drawn given each row, by a few Gibbs sweeps starting from the layers below.
    """

    @abstractmethod
    def draw(self, context: Context, carry: Carry) -> Carry:
        """Draw new samples: the states of all layers, of which the even ones are used, and further state to carry."""

    def average(self, context: Context, values: Tensor) -> Tensor:
        """Mean of one value per sample, or this process's share of it."""
        return values.mean()

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        """State for the next step, from the samples and the fields on the odd layers."""
        return drawn

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, drawn = context.machine, self.draw(context, carry)
        fields: dict[int, Tensor] = {}
        if machine.is_pairwise:
            values = clamped_free_energy(machine, drawn[0])
        else:
            values, fields = summed_over_odd_layers(machine, drawn[: len(machine.layers)])
        return self.average(context, values), self.hand_on(context, drawn, fields)

    def draw_given_rows(self, context: Context) -> list[Tensor]:
        """Draw states of all layers of a deep machine given this process's rows."""
        drawn = _given_rows(context, context.batch, _independently)
        return [z[context.world.share(len(z))] for z in drawn]

    def free_energies(self, context: Context, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        machine = context.machine
        if machine.is_pairwise:
            return super().free_energies(context, carry)
        drawn = self.draw(context, carry)
        given = [context.rows] if len(machine.layers) == 2 else self.draw_given_rows(context)
        # Rows and samples are states of the same layers, and one matrix product for both is faster than two.
        n_rows, states = len(context.rows), list(drawn[: len(machine.layers)])
        for index in range(0, len(states), 2):
            states[index] = torch.cat((given[index], states[index]))
        values, fields = summed_over_odd_layers(machine, states)
        on_data, on_samples = values[:n_rows], values[n_rows:]
        fields = {index: field[n_rows:] for index, field in fields.items()}
        return on_data, self.average(context, on_samples), self.hand_on(context, drawn, fields)


@final
class CD(_Sampled):
    """Contrastive divergence: samples after k sweeps of block Gibbs sampling from the batch.

    Args:
        k: Number of sweeps.
    """

    def __init__(self, k: int = 1) -> None:
        self.n_sweeps = check_count("CD: k", k)

    def __repr__(self) -> str:
        return f"CD({self.n_sweeps})"

    def prepare(self, context: Context) -> Carry:
        return ()

    def draw(self, context: Context, carry: Carry) -> Carry:
        return _sweeps(context, _upper_layers(context, context.batch), self.n_sweeps)

    def average(self, context: Context, values: Tensor) -> Tensor:
        return average(values, context.weights)

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        return ()


@final
class PCD(_Sampled):
    """Persistent contrastive divergence: k sweeps per step of chains that persist between steps.

    By default the chains are stratified: the uniform numbers for a unit's draws are spread evenly over the chains
    (`units/numerics/strata.py`). Each chain is still an exact Gibbs chain, but averages over chains vary less, fewer
    random numbers are needed, and several processes, each with a share of the chains, draw the same states as one.

    Early in training, when clusters of the data separate one after another, chains occasionally restart from rows of
    the batch, so that they do not all end up in a few clusters: in step t with probability 200/(200 + t)², about once
    per chain. Later they are not restarted, so that clusters have their weights in the machine, not in the data.

    Args:
        k: Number of sweeps.
        n_chains: Number of chains (default: the batch size).
        stratified: Whether to stratify draws over the chains, for unit types that can be drawn by inversion.
        restarts: Whether to restart chains early in training.
    """

    def __init__(
        self, k: int = 1, n_chains: int | None = None, *, stratified: bool = True, restarts: bool = True
    ) -> None:
        self.n_sweeps = check_count("PCD: k", k)
        self.n_chains = None if n_chains is None else check_count("n_chains", n_chains)
        self.stratified, self.restarts = stratified, restarts

    def __repr__(self) -> str:
        count = "" if self.n_chains is None else f", n_chains={self.n_chains}"
        flags = "".join(f", {name}=False" for name in ("stratified", "restarts") if not getattr(self, name))
        return f"PCD({self.n_sweeps}{count}{flags})"

    def prepare(self, context: Context) -> Carry:
        count, layers = self._count(context), list(context.machine.layers)
        # Numbers that depend only on the chain's index can be drawn in shares; others only all at once.
        self.is_split = (
            self.stratified and not context.machine.is_pairwise and all(units.has_inversion for units in layers)
        )
        if self.is_split and count < context.world.size:
            raise ValueError(f"there are {context.world.size} processes for {count} chains; use more chains")
        rows = _rows_by_weight(context, count)[self._share(context)].clone()
        if self.stratified:
            dtype, n_rows = context.machine.dtype, len(context.batch)
            self._points = lattice(count, dtype, rows.device)[self._share(context)]
            self._points_of_rows = lattice(n_rows, dtype, rows.device)[context.world.share(n_rows)]
        steps = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return (*_upper_layers(context, rows, self._draw), steps)

    def draw(self, context: Context, carry: Carry) -> Carry:
        *chain, steps = carry
        if self.restarts:
            chain = self._restart(context, chain, steps)
        return (*_sweeps(context, chain, self.n_sweeps, self._draw), steps + 1)

    def draw_given_rows(self, context: Context) -> list[Tensor]:
        if not self.is_split:
            return super().draw_given_rows(context)
        return _given_rows(context, context.rows, self._draw_for_rows)

    def average(self, context: Context, values: Tensor) -> Tensor:
        return values.sum() / self._count(context) if self.is_split else values.mean()

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        chain = list(drawn)
        for index, field in fields.items():  # the end of the sweep
            chain[index] = self._draw(context, index, field.detach())
        return tuple(chain)

    def _count(self, context: Context) -> int:
        return self.n_chains or len(context.batch)

    def _share(self, context: Context) -> slice:
        """Range of this process's chains."""
        count = self._count(context)
        return context.world.share(count) if self.is_split else slice(0, count)

    def _draw(self, context: Context, index: int, field: Tensor) -> Tensor:
        """Draw new states of a layer for all chains, or for this process's share of them."""
        return (
            self._draw_at(self._points, context, index, field)
            if self.stratified
            else _independently(context, index, field)
        )

    def _draw_for_rows(self, context: Context, index: int, field: Tensor) -> Tensor:
        """Draw new states of a layer given this process's rows."""
        return self._draw_at(self._points_of_rows, context, index, field)

    def _draw_at(self, points: Tensor, context: Context, index: int, field: Tensor) -> Tensor:
        units = context.machine.layers[index]
        if not units.has_inversion:
            return _independently(context, index, field)
        states = units.draw(Tilt(field, 0.0), strata(points, units.n, context.generator))
        assert states is not None
        return states

    def _restart(self, context: Context, chain: list[Tensor], steps: Tensor) -> list[Tensor]:
        """Restart some of the chains from rows of the batch."""
        count, device = self._count(context), steps.device
        over = torch.rand(count, generator=context.generator, device=device) * (SETTLED + steps[0]) ** 2 < SETTLED
        if device.type == "cpu" and not torch.compiler.is_compiling() and not bool(over.any()):
            return chain
        share = self._share(context)
        fresh = _upper_layers(context, _rows_by_weight(context, count)[share], self._draw)
        over = over[share]
        return [torch.where(over.view(-1, *[1] * (x.dim() - 1)), new, x) for new, x in zip(fresh, chain, strict=True)]


@final
class Chains(Start):
    """States of persistent chains as in `PCD`, as initial states of TAP solutions.

    With `TAPObjective(Chains(10), n_sweeps=1)` the sweep replaces samples by the means of their units, and training is
    about as good as with `PCD(10)`. Further sweeps move the particles away from the machine's distribution.

    Args:
        k: Number of sweeps of the chains per step.

    Example:
        >>> from tapmachine import TAPObjective
        >>> from tapmachine.training import Chains
        >>> TAPObjective(Chains(10), n_particles=100, n_sweeps=1)
        TAPObjective(Chains(10), n_particles=100, n_sweeps=1, TAP(), merged=False)
    """

    is_carried = True
    samples_machine = True
    is_random = True

    def __init__(self, k: int = 10) -> None:
        self.k = check_count("Chains: k", k)

    def prepare(self, context: Context, n_particles: int) -> Carry:
        return self._chains(n_particles).prepare(context)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        machine, chains = context.machine, self._chains(n_particles)
        drawn = chains.draw(context, carry)
        odd = () if machine.is_pairwise else range(1, len(machine.layers), 2)
        fields = {index: machine.field_on(index, drawn[: len(machine.layers)]) for index in odd}
        return drawn[0], chains.hand_on(context, drawn, fields)

    def _chains(self, n_particles: int) -> PCD:
        return PCD(self.k, n_particles, stratified=False)  # all chains in every process: TAP solutions are not split

    def __repr__(self) -> str:
        return f"Chains({self.k})"


Draw = Callable[[Context, int, Tensor], Tensor]  # draws new states of a layer in a field


def _independently(context: Context, index: int, field: Tensor) -> Tensor:
    return context.machine.layers[index].sample(Tilt(field, 0.0), context.generator)


@torch.no_grad()
def _sweeps(context: Context, chain: list[Tensor], n_sweeps: int, draw: Draw = _independently) -> Carry:
    """Run sweeps; with layers, the last one omits the odd layers, which F sums over."""
    machine = context.machine
    for done in range(1, n_sweeps + 1):
        if machine.is_pairwise:
            chain = sweep_chain(machine, chain, context.generator)
            continue
        for first in (0, 1) if done < n_sweeps else (0,):
            _draw_every_other(context, chain, first, draw)
    return tuple(chain)


@torch.no_grad()
def _given_rows(context: Context, x: Tensor, draw: Draw) -> list[Tensor]:
    """Draw states of all layers of a deep machine given rows, by a few sweeps starting from below."""
    chain = _upper_layers(context, x, draw)
    for done in range(POSTERIOR_SWEEPS):
        if done:
            _draw_every_other(context, chain, 1, draw)
        _draw_every_other(context, chain, 2, draw)
    return chain


@torch.no_grad()
def _upper_layers(context: Context, x: Tensor, draw: Draw = _independently) -> list[Tensor]:
    """States of all layers; those above the visible one are drawn from below."""
    chain, layers = [x], list(context.machine.layers)
    for index in range(1, len(layers)):
        field = chain[-1].flatten(1) @ context.machine.weights[index - 1]
        chain.append(draw(context, index, field.unflatten(-1, layers[index].state_shape)))
    if len(layers) > 2:  # draws from below do not depend on the layers above yet
        _draw_every_other(context, chain, 1, draw)
    return chain


def _draw_every_other(context: Context, chain: list[Tensor], first: int, draw: Draw) -> None:
    """Half a sweep, in place: draw alternating layers given the others."""
    for index in range(first, len(chain), 2):
        chain[index] = draw(context, index, context.machine.field_on(index, chain))


def _rows_by_weight(context: Context, count: int) -> Tensor:
    """Select `count` rows of the batch, repeating them if there are fewer, each as often as its weight requires."""
    if context.weights is None:
        return context.batch[torch.arange(count, device=context.batch.device) % len(context.batch)]
    total = context.weights.cumsum(0)
    places = (torch.arange(count, device=total.device) + 0.5) / count * total[-1]
    return context.batch[torch.searchsorted(total, places).clamp(max=len(total) - 1)]
