"""Sampling objectives, which estimate F of the free machine from the states of Gibbs chains."""

from abc import abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine.sampler import sweep_chain
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, clamped_free_energy, summed_over_odd_layers
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

    def average(self, context: Context, values: Tensor) -> Tensor:
        """Return the mean over the samples, or the contribution of this process to the mean."""
        return values.mean()

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        """Return the state for the next step, given the samples and the fields on the odd layers."""
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
        """Draw the states of all layers of a deep machine, given the rows of this process."""
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
        return _sweeps(context, _upper_layers(context, context.batch), self.n_sweeps)

    def average(self, context: Context, values: Tensor) -> Tensor:
        return average(values, context.weights)

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
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
    the machine determines the weights of the clusters.

    Args:
        k: Number of Gibbs sweeps per training step (default: 1).
        n_chains: Number of chains (default: the batch size).
        stratified: Whether to stratify draws over the chains, for unit types that can be sampled by inversion (default:
            True).
        restarts: Whether to restart chains early in training (default: True).

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
        self.stratified, self.restarts = stratified, restarts

    def __repr__(self) -> str:
        count = "" if self.n_chains is None else f", n_chains={self.n_chains}"
        flags = "".join(f", {name}=False" for name in ("stratified", "restarts") if not getattr(self, name))
        return f"PCD({self.n_sweeps}{count}{flags})"

    def prepare(self, context: Context) -> Carry:
        count, layers = self._count(context), list(context.machine.layers)
        # Stratified numbers depend only on the chain's index, so that each process can draw its share of them.
        self.is_split = (
            self.stratified and not context.machine.is_pairwise and all(units.has_inversion for units in layers)
        )
        if self.is_split and count < context.world.size:
            raise ValueError(f"{count} chains cannot be divided among {context.world.size} processes; use more chains")
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
        """Index range of the chains of this process."""
        count = self._count(context)
        return context.world.share(count) if self.is_split else slice(0, count)

    def _draw(self, context: Context, index: int, field: Tensor) -> Tensor:
        """Draw new states of a layer for all chains of this process."""
        return (
            self._draw_at(self._points, context, index, field)
            if self.stratified
            else _independently(context, index, field)
        )

    def _draw_for_rows(self, context: Context, index: int, field: Tensor) -> Tensor:
        """Draw new states of a layer given the rows of this process."""
        return self._draw_at(self._points_of_rows, context, index, field)

    def _draw_at(self, points: Tensor, context: Context, index: int, field: Tensor) -> Tensor:
        units = context.machine.layers[index]
        if not units.has_inversion:
            return _independently(context, index, field)
        states = units.draw(Tilt(field, 0.0), strata(points, units.n, context.generator))
        assert states is not None
        return states

    def _restart(self, context: Context, chain: list[Tensor], steps: Tensor) -> list[Tensor]:
        """Restart randomly selected chains from rows of the batch."""
        count, device = self._count(context), steps.device
        over = torch.rand(count, generator=context.generator, device=device) * (SETTLED + steps[0]) ** 2 < SETTLED
        if device.type == "cpu" and not torch.compiler.is_compiling() and not bool(over.any()):
            return chain
        share = self._share(context)
        fresh = _upper_layers(context, _rows_by_weight(context, count)[share], self._draw)
        over = over[share]
        return [torch.where(over.view(-1, *[1] * (x.dim() - 1)), new, x) for new, x in zip(fresh, chain, strict=True)]


Draw = Callable[[Context, int, Tensor], Tensor]  # draws new states of a layer, given its field


def _independently(context: Context, index: int, field: Tensor) -> Tensor:
    return context.machine.layers[index].sample(Tilt(field, 0.0), context.generator)


@torch.no_grad()
def _sweeps(context: Context, chain: list[Tensor], n_sweeps: int, draw: Draw = _independently) -> Carry:
    """Run Gibbs sweeps.

    In machines with layers, the last sweep skips the odd layers, because F sums over them.
    """
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
    """Draw the states of all layers of a deep machine, given rows of data.

    The hidden layers are initialized by an upward pass and then updated by a few Gibbs sweeps.
    """
    chain = _upper_layers(context, x, draw)
    for done in range(POSTERIOR_SWEEPS):
        if done:
            _draw_every_other(context, chain, 1, draw)
        _draw_every_other(context, chain, 2, draw)
    return chain


@torch.no_grad()
def _upper_layers(context: Context, x: Tensor, draw: Draw = _independently) -> list[Tensor]:
    """Return the states of all layers, with the hidden layers sampled in an upward pass."""
    chain, layers = [x], list(context.machine.layers)
    for index in range(1, len(layers)):
        field = chain[-1].flatten(1) @ context.machine.weights[index - 1]
        chain.append(draw(context, index, field.unflatten(-1, layers[index].state_shape)))
    if len(layers) > 2:  # the upward pass ignores the layers above
        _draw_every_other(context, chain, 1, draw)
    return chain


def _draw_every_other(context: Context, chain: list[Tensor], first: int, draw: Draw) -> None:
    """Perform half a Gibbs sweep in place, drawing every other layer given its neighbors."""
    for index in range(first, len(chain), 2):
        chain[index] = draw(context, index, context.machine.field_on(index, chain))


def _rows_by_weight(context: Context, count: int) -> Tensor:
    """Select `count` rows of the batch in proportion to their weights, repeating rows if necessary."""
    if context.weights is None:
        return context.batch[torch.arange(count, device=context.batch.device) % len(context.batch)]
    total = context.weights.cumsum(0)
    places = (torch.arange(count, device=total.device) + 0.5) / count * total[-1]
    return context.batch[torch.searchsorted(total, places).clamp(max=len(total) - 1)]
