"""Sampling objectives, which estimate F of the free machine from the states of Gibbs chains."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.sampler import Draw, draw_layers, independently, sweep_chain, upward
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, summed_over_odd_layers
from tapmachine.training.loss import Objective
from tapmachine.units.numerics.strata import lattice, strata

POSTERIOR_SWEEPS = 10  # Gibbs sweeps of the hidden layers of a deep machine given a row; these chains mix quickly
SETTLED = 200  # a chain restarts in step t with probability SETTLED/(SETTLED + t)²


class _Sampled(Objective):
    """Objective that averages F of the clamped machine over samples instead of computing F of the free machine.

    In a deep machine, the even layers are clamped, and the odd layers are summed over exactly. Given a row of data,
    layers 2, 4, … are drawn by a few Gibbs sweeps that start from the layers below.
    """

    @abstractmethod
    def draw(self, context: Context, carry: Carry) -> Carry:
        """Draw new samples.

        Returns the states of all layers and any additional state to carry over. Only the even layers are used.
        """

    @abstractmethod
    def average(self, context: Context, drawn: Carry, values: Tensor) -> Tensor:
        """Return the mean of F over the samples, or the contribution of this process to the mean."""

    @abstractmethod
    def next_carry(self, context: Context, drawn: Carry, fields: dict[int, Tensor], values: Tensor) -> Carry:
        """Return the state for the next step, given the samples, the fields on the odd layers, and F."""

    def draw_given_rows(self, context: Context) -> list[Tensor]:
        """Draw the states of all layers of a deep machine, given the rows of this process."""
        machine = context.machine
        drawn = _given_rows(machine, context.batch, independently(machine, context.generator))
        return [z[context.world.part(len(z))] for z in drawn]

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, drawn = context.machine, self.draw(context, carry)
        states = drawn[: len(machine.layers)]
        fields = {index: machine.field_on(index, states) for index in range(1, len(states), 2)}
        values = summed_over_odd_layers(machine, states, fields)
        return self.average(context, drawn, values), self.next_carry(context, drawn, fields, values)

    def loss(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, drawn = context.machine, self.draw(context, carry)
        given = [context.rows] if len(machine.layers) <= 2 else self.draw_given_rows(context)
        # Rows and samples are states of the same layers, and one matrix product for both is faster than two.
        n_rows, states = len(context.rows), list(drawn[: len(machine.layers)])
        for index in range(0, len(states), 2):
            states[index] = torch.cat((given[index], states[index]))
        fields: dict[int, Tensor] = {}
        for index in range(1, len(states), 2):
            fields[index] = machine.field_on(index, states)
        values = summed_over_odd_layers(machine, states, fields)
        on_rows, of_samples = values[:n_rows], values[n_rows:]
        fields = {index: field[n_rows:] for index, field in fields.items()}
        loss = self.difference(context, on_rows, self.average(context, drawn, of_samples))
        return loss, self.next_carry(context, drawn, fields, of_samples)


@final
class CD(_Sampled):
    """Contrastive divergence, with samples drawn by k block Gibbs sweeps that start from the batch.

    Args:
        k: Number of Gibbs sweeps per training step (default: 1).

    Example:
        >>> import torch
        >>> from tapmachine import CD, Binary, fit, rbm
        >>> history = fit(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2, objective=CD(1))
        >>> len(history.records)
        2
    """

    def __init__(self, k: int = 1) -> None:
        self.n_sweeps = check_count("CD: k", k)

    def __repr__(self) -> str:
        return f"CD({self.n_sweeps})"

    def prepare(self, context: Context) -> Carry:
        return ()

    def draw(self, context: Context, carry: Carry) -> Carry:
        draw = independently(context.machine, context.generator)
        return _swept(context, _all_layers(context.machine, context.batch, draw), self.n_sweeps, draw)

    def average(self, context: Context, drawn: Carry, values: Tensor) -> Tensor:
        return average(values, context.weights)

    def next_carry(self, context: Context, drawn: Carry, fields: dict[int, Tensor], values: Tensor) -> Carry:
        return ()


@final
class PCD(_Sampled):
    """Persistent contrastive divergence, with Gibbs chains that persist between training steps.

    By default, the chains are stratified: the uniform random numbers for each unit are spread evenly over the chains
    (`units/numerics/strata.py`). Each chain is still an exact Gibbs chain, but averages over chains have a smaller
    variance, and fewer random numbers are needed. Several processes, each with a share of the chains, draw the same
    states as a single process.

    Early in training, when clusters of the data separate one after another, chains occasionally restart from rows of
    the batch. Without restarts, all chains could end up in a few clusters. The restart probability in step t is
    200/(200 + t)², which amounts to about one restart per chain. Later in training, chains are not restarted, so that
    the machine determines the weights of the clusters. If the visible units have finitely many states, the chains are
    compared with annealed draws from the machine every 10 to 80 steps, and replaced by them where their shares of the
    clusters differ (`training/clusters.py`), because Gibbs sweeps do not move chains between separated clusters.

    Args:
        k: Number of Gibbs sweeps per training step (default: 1).
        n_chains: Number of chains (default: the batch size).
        stratified: Whether to stratify draws over the chains, for unit types that can be sampled by inversion (default:
            True).
        restarts: Whether to restart chains early in training, and to replace chains by annealed draws (default: True).

    Example:
        >>> import torch
        >>> from tapmachine import PCD, Binary, fit, rbm
        >>> history = fit(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2, objective=PCD(5))
        >>> len(history.records)
        2
    """

    def __init__(
        self, k: int = 1, n_chains: int | None = None, *, stratified: bool = True, restarts: bool = True
    ) -> None:
        self.n_sweeps = check_count("PCD: k", k)
        self.n_chains = None if n_chains is None else check_count("n_chains", n_chains)
        self.stratified, self.restarts, self.keeps_chains = stratified, restarts, restarts

    def __repr__(self) -> str:
        count = "" if self.n_chains is None else f", n_chains={self.n_chains}"
        flags = "".join(f", {name}=False" for name in ("stratified", "restarts") if not getattr(self, name))
        return f"PCD({self.n_sweeps}{count}{flags})"

    def prepare(self, context: Context) -> Carry:
        machine, count = context.machine, self._count(context)
        # Stratified numbers depend only on the chain's index, so that each process can draw its part of them.
        self.is_split = (
            self.stratified and not machine.is_pairwise and all(units.has_inversion for units in machine.layers)
        )
        if self.is_split and count < context.world.size:
            raise ValueError(f"{count} chains cannot be divided among {context.world.size} processes; use more chains")
        rows = _rows_by_weight(context, count)[self._part(context)].clone()
        if self.stratified:
            n_rows = len(context.batch)
            self._points = lattice(count, machine.dtype, rows.device)[self._part(context)]
            self._points_of_rows = lattice(n_rows, machine.dtype, rows.device)[context.world.part(n_rows)]
        steps = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        weights = torch.full((len(rows),), 1 / count, dtype=machine.dtype, device=rows.device)
        return (*_all_layers(machine, rows, self._draws(context)), steps, weights, torch.zeros_like(weights))

    def draw(self, context: Context, carry: Carry) -> Carry:
        *chain, steps, weights, free_energies = carry
        if self.restarts:
            chain = self._restart(context, chain, steps)
        return (*_swept(context, chain, self.n_sweeps, self._draws(context)), steps + 1, weights, free_energies)

    def draw_given_rows(self, context: Context) -> list[Tensor]:
        if not self.is_split:
            return super().draw_given_rows(context)
        return _given_rows(context.machine, context.rows, self._stratified(context, self._points_of_rows))

    def average(self, context: Context, drawn: Carry, values: Tensor) -> Tensor:
        return values @ drawn[-2]

    def next_carry(self, context: Context, drawn: Carry, fields: dict[int, Tensor], values: Tensor) -> Carry:
        chain, draw = [*drawn[:-1], values.detach()], self._draws(context)
        for index, field in fields.items():  # the end of the sweep
            chain[index] = draw(index, field.detach())
        return tuple(chain)

    def _count(self, context: Context) -> int:
        return self.n_chains or len(context.batch)

    def _part(self, context: Context) -> slice:
        """Index range of the chains of this process."""
        count = self._count(context)
        return context.world.part(count) if self.is_split else slice(0, count)

    def _draws(self, context: Context) -> Draw:
        """Return a function that draws new states of a layer for all chains of this process."""
        if self.stratified:
            return self._stratified(context, self._points)
        return independently(context.machine, context.generator)

    def _stratified(self, context: Context, points: Tensor) -> Draw:
        """Return a function that draws new states of a layer for the chains, or rows, at points of the lattice."""
        layers, generator = context.machine.layers, context.generator

        def draw(index: int, field: Tensor) -> Tensor:
            tilt, units = Tilt(field, 0.0), layers[index]
            if not units.has_inversion:
                return units.sample(tilt, generator)
            states = units.draw(tilt, strata(points, units.n, generator))
            assert states is not None
            return states

        return draw

    def _restart(self, context: Context, chain: list[Tensor], steps: Tensor) -> list[Tensor]:
        """Restart randomly selected chains from rows of the batch."""
        count, device = self._count(context), steps.device
        over = torch.rand(count, generator=context.generator, device=device) * (SETTLED + steps[0]) ** 2 < SETTLED
        if device.type == "cpu" and not torch.compiler.is_compiling() and not bool(over.any()):
            return chain
        part = self._part(context)
        fresh = _all_layers(context.machine, _rows_by_weight(context, count)[part], self._draws(context))
        over = over[part]
        return [torch.where(over.view(-1, *[1] * (x.dim() - 1)), new, x) for new, x in zip(fresh, chain, strict=True)]


@torch.no_grad()
def _swept(context: Context, chain: Sequence[Tensor], n_sweeps: int, draw: Draw) -> Carry:
    """Run Gibbs sweeps; in machines with layers, the last sweep skips the odd layers, because F sums over them."""
    machine = context.machine
    for remaining in reversed(range(n_sweeps)):
        if machine.is_pairwise:
            chain = sweep_chain(machine, chain, context.generator)
        else:
            chain = draw_layers(machine, chain, 0, draw)
            chain = draw_layers(machine, chain, 1, draw) if remaining else chain
    return tuple(chain)


@torch.no_grad()
def _given_rows(machine: BoltzmannMachine, x: Tensor, draw: Draw) -> list[Tensor]:
    """Draw the states of all layers of a deep machine, given rows of data, by a few Gibbs sweeps."""
    chain = _all_layers(machine, x, draw)
    for done in range(POSTERIOR_SWEEPS):
        chain = draw_layers(machine, chain, 1, draw) if done else chain
        chain = draw_layers(machine, chain, 2, draw)
    return chain


@torch.no_grad()
def _all_layers(machine: BoltzmannMachine, x: Tensor, draw: Draw) -> list[Tensor]:
    """Return the states of all layers, with the hidden layers sampled in an upward pass."""
    chain = upward(machine, [x], draw)
    return draw_layers(machine, chain, 1, draw) if len(chain) > 2 else chain  # the pass ignores the layers above


def _rows_by_weight(context: Context, count: int) -> Tensor:
    """Select `count` rows of the batch in proportion to their weights, repeating rows if necessary."""
    if context.weights is None:
        return context.batch[torch.arange(count, device=context.batch.device) % len(context.batch)]
    total = context.weights.cumsum(0)
    quantiles = (torch.arange(count, device=total.device) + 0.5) / count * total[-1]
    return context.batch[torch.searchsorted(total, quantiles).clamp(max=len(total) - 1)]
