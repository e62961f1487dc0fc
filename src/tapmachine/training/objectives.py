"""What is minimised: F of the machine clamped to data, less F of the free machine, however the latter is found.

ln P(x) = F(free) − F(clamped to x). F is stationary in the moments of a solution, so its gradient in the parameters is
taken with the moments held fixed: autodiff of F at detached moments.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.inference import TAP, Scheme, solve
from tapmachine.machine import BoltzmannMachine
from tapmachine.sampling import draw_layers, sweep_chain
from tapmachine.training.free_energies import average, clamped_free_energy, summed_over_odd_layers, sweep_from
from tapmachine.training.starts import LIFETIME, Carry, Context, FromBatch, Herded, Start, has_herded_states

LEAST_CHAINS = 100  # of the default


class Objective(ABC):
    """The model's side of the gradient, the negative phase.

    Unless it says otherwise, its shapes are fixed and nothing looks at values, so that a step can be captured as a
    CUDA graph.
    """

    can_be_captured: bool = True
    is_split: bool = False  # whether each of several processes finds its share of F, or else all of it
    scheme: Scheme | None = None  # also for the clamped side of machines with several hidden layers; None for TAP

    @abstractmethod
    def prepare(self, context: Context) -> Carry:
        """What the first step is handed."""

    @abstractmethod
    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        """F of the free machine, (), differentiable in its parameters, and what is handed on.

        If it is split, this process's share of F: those of all add up to it.
        """

    def free_energies(self, context: Context, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        """F of the machine clamped to each of this process's rows; F of the free one, and what is handed on."""
        on_data = clamped_free_energy(context.machine, context.own_rows, self.scheme, context.hidden)
        return on_data, *self.model_free_energy(context, carry)


@final
class TAPObjective(Objective):
    """F of the free machine at K of its solutions, deterministically [alg:rbmTrain].

    Args:
        start: where the solutions start; `FromBatch()` unless given.
        n_particles: K, how many; as many as rows in a batch, unless given.
        n_sweeps: sweeps that are made from the start, which need not reach a solution; after the first they come in
            steps of three (implicit) or four (fixed damping), the last of which is made whole. None for as many as it
            takes, which cannot be captured on a GPU.
        scheme: `TAP()` unless given.
    """

    scheme: Scheme
    is_split = True

    def __init__(
        self,
        start: Start | None = None,
        n_particles: int | None = None,
        n_sweeps: int | None = 10,
        scheme: Scheme | None = None,
    ) -> None:
        for name, value in (("n_particles", n_particles), ("n_sweeps", n_sweeps)):
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
        self.start, self.n_particles, self.n_sweeps = start or FromBatch(), n_particles, n_sweeps
        self.scheme = scheme or TAP()
        self.can_be_captured = n_sweeps is not None and self.scheme.can_be_captured

    def __repr__(self) -> str:
        return f"TAPObjective({self.start}, n_particles={self.n_particles}, n_sweeps={self.n_sweeps}, {self.scheme})"

    def prepare(self, context: Context) -> Carry:
        count = self.n_particles or len(context.batch)
        return own_share(context, self.start.prepare(context, count), count)

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, count = context.machine, self.n_particles or len(context.batch)
        own, all_weights = context.world.share(count), self.start.weights(context, count)
        weights = None if all_weights is None else all_weights[own]
        with torch.no_grad():
            x, carry = self.start.begin(context, count, carry)
            x = x if self.start.is_carried else x[own]
            if self.n_sweeps is None:
                solution = solve(machine, x, self.scheme)
                carry = self.start.finish(solution.moments[0].mean, carry)
                finite = torch.isfinite(solution.free_energy)  # the others have none
                found = solution.select(finite)
                moments, tilts = list(found.moments), list(found.tilts)
                weights = None if weights is None else weights[finite]
            else:
                moments, tilts = sweep_from(machine, x, self.scheme, self.n_sweeps)
                carry = self.start.finish(moments[0].mean, carry)
        value = average(self.scheme.free_energy(machine, moments, tilts), weights)
        if context.world.size == 1:
            return value, carry
        if all_weights is None:
            return value * ((own.stop - own.start) / count), carry
        return value * all_weights[own].sum() / all_weights.sum().clamp(min=torch.finfo(all_weights.dtype).tiny), carry


class _Sampled(Objective):
    """F of the machine clamped to samples in place of F of the free one: its gradient is an average over them.

    Of a deep machine every other layer is clamped, and those between them are summed over.
    """

    @abstractmethod
    def draw(self, context: Context, carry: Carry) -> Carry:
        """New samples: the states of all layers, of which those of even numbers count, and what else is handed on."""

    def average(self, context: Context, values: Tensor) -> Tensor:
        """The mean of a value of each sample, or this process's share of it."""
        return values.mean()

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        """What the next step is handed, given what was drawn and the fields on layers of odd numbers."""
        return drawn

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, drawn = context.machine, self.draw(context, carry)
        fields: dict[int, Tensor] = {}
        if machine.is_pairwise:
            values = clamped_free_energy(machine, drawn[0])
        else:
            values, fields = summed_over_odd_layers(machine, drawn[: len(machine.layers)])
        return self.average(context, values), self.hand_on(context, drawn, fields)

    def free_energies(self, context: Context, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        if len(context.machine.layers) != 2:
            return super().free_energies(context, carry)
        # Data and samples are rows of the same kind, and one product of all is faster than two.
        data, drawn = context.own_rows, self.draw(context, carry)
        values, fields = summed_over_odd_layers(context.machine, [torch.cat((data, drawn[0])), drawn[1]])
        on_data, on_samples = values.split((len(data), len(drawn[0])))
        fields = {number: field[len(data) :] for number, field in fields.items()}
        return on_data, self.average(context, on_samples), self.hand_on(context, drawn, fields)


class _GibbsSampled(_Sampled):
    """Samples after k sweeps of block Gibbs sampling."""

    def __init__(self, n_sweeps: int) -> None:
        if isinstance(n_sweeps, bool) or not (isinstance(n_sweeps, int) and n_sweeps >= 1):
            raise ValueError(f"{type(self).__name__}: k is {n_sweeps!r}; it must be a whole number, 1 or more")
        self.n_sweeps = n_sweeps

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_sweeps})"

    def sweep(self, context: Context, chain: list[Tensor]) -> Carry:
        """k sweeps; with layers, the last one without those of odd numbers, which F sums over."""
        machine, generator = context.machine, context.generator
        for number in range(self.n_sweeps):
            if machine.is_pairwise:
                chain = sweep_chain(machine, chain, generator)
                continue
            chain = draw_layers(machine, chain, 0, generator)
            if number < self.n_sweeps - 1:
                chain = draw_layers(machine, chain, 1, generator)
        return tuple(chain)


@final
class CD(_GibbsSampled):
    """Contrastive divergence: samples after k sweeps of block Gibbs sampling from the batch.

    Args:
        k: how many sweeps.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__(k)

    def prepare(self, context: Context) -> Carry:
        return ()

    def draw(self, context: Context, carry: Carry) -> Carry:
        return self.sweep(context, _upper_layers(context, context.batch))

    def average(self, context: Context, values: Tensor) -> Tensor:
        return average(values, context.weights)

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        return ()


@final
class PCD(_GibbsSampled):
    """Persistent contrastive divergence: k more sweeps of chains that go on from step to step.

    Args:
        k: how many sweeps.
        n_chains: how many chains; as many as rows in a batch, unless given.
    """

    def __init__(self, k: int = 1, n_chains: int | None = None) -> None:
        super().__init__(k)
        if n_chains is not None and not (isinstance(n_chains, int) and n_chains >= 1):
            raise ValueError(f"n_chains is {n_chains!r}; it must be a whole number, 1 or more")
        self.n_chains = n_chains

    def prepare(self, context: Context) -> Carry:
        count = self.n_chains or len(context.batch)
        rows = torch.arange(count, device=context.batch.device) % len(context.batch)
        return tuple(_upper_layers(context, context.batch[rows].clone()))

    def draw(self, context: Context, carry: Carry) -> Carry:
        return self.sweep(context, list(carry))

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        chain, layers = list(drawn), context.machine.units()
        for number, field in fields.items():  # with which the sweep ends
            chain[number] = layers[number].sample(Tilt(field.detach(), 0.0), context.generator)
        return tuple(chain)


@final
class HerdedPCD(_Sampled):
    """Persistent contrastive divergence without chance: the chains are herded, which is deterministic; see `Herded`.

    For `Binary`, `Spin` and `Categorical` units: others herd their means, which lack a variance.

    Args:
        k: how many sweeps.
        n_chains: how many chains; as many as rows in a batch, unless given.
        lifetime: steps after which a chain begins anew from the batch; None for never.
    """

    is_split = True

    def __init__(self, k: int = 10, n_chains: int | None = None, lifetime: int | None = LIFETIME) -> None:
        if n_chains is not None and not (isinstance(n_chains, int) and n_chains >= 1):
            raise ValueError(f"n_chains is {n_chains!r}; it must be a whole number, 1 or more")
        self.start, self.n_chains = Herded(k, lifetime), n_chains

    def __repr__(self) -> str:
        lifetime = "" if self.start.lifetime == LIFETIME else f", lifetime={self.start.lifetime}"
        return f"HerdedPCD({self.start.n_sweeps}, n_chains={self.n_chains}{lifetime})"

    def prepare(self, context: Context) -> Carry:
        for number, units in enumerate(context.machine.units()):
            if not has_herded_states(units):
                raise ValueError(
                    f"layer {number}: HerdedPCD needs Binary, Spin or Categorical units, not {type(units).__name__}; "
                    "use TAPObjective(Herded())"
                )
        count = self.n_chains or len(context.batch)
        return own_share(context, self.start.prepare(context, count), count)

    def draw(self, context: Context, carry: Carry) -> Carry:
        with torch.no_grad():
            _, carry = self.start.begin(context, self.n_chains or len(context.batch), carry)
        return carry

    def average(self, context: Context, values: Tensor) -> Tensor:
        count = self.n_chains or len(context.batch)
        return values.mean() if context.world.size == 1 else values.sum() / count


def default_objective(machine: BoltzmannMachine, batch_size: int = 100) -> Objective:
    """What `fit` uses unless told: a herded chain for each row of a batch, and no fewer than 100; or, if the states of
    some units do not herd, a TAP sweep from one for each row.

    A pairwise machine has no layers for chains to alternate between: it is trained from the batch, as in the paper.

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> default_objective(rbm(Binary(4), Binary(2)))
        HerdedPCD(10, n_chains=100)
        >>> default_objective(rbm(TruncatedGaussian(4), Binary(2)))
        TAPObjective(Herded(10), n_particles=100, n_sweeps=1, TAP())
    """
    if machine.is_pairwise:
        return TAPObjective()
    if all(has_herded_states(units) for units in machine.units()):
        return HerdedPCD(10, n_chains=max(batch_size, LEAST_CHAINS))
    return TAPObjective(Herded(10), n_particles=batch_size, n_sweeps=1)


def own_share(context: Context, carry: Carry, count: int) -> Carry:
    """What this process is handed, of what all are."""
    if context.world.size == 1:
        return carry
    return tuple(z[context.world.share(count)].clone() for z in carry)


def _upper_layers(context: Context, x: Tensor) -> list[Tensor]:
    """States of all layers, those above the visible one drawn from below."""
    chain, layers = [x], context.machine.units()
    with torch.no_grad():
        for number in range(1, len(layers)):
            field = chain[-1].flatten(1) @ context.machine.weights[number - 1]
            tilt = Tilt(field.unflatten(-1, layers[number].state_shape), 0.0)
            chain.append(layers[number].sample(tilt, context.generator))
    # Of several hidden layers, those that were drawn from below have not heard of what is above them.
    return draw_layers(context.machine, chain, 1, context.generator) if len(layers) > 2 else chain
