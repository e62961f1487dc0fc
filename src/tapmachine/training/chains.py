"""Objectives that sample: F of the machine clamped to the states of Gibbs chains in place of F of the free machine."""

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine.gibbs_sampling import draw_layers, sweep_chain
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, clamped_free_energy, summed_over_odd_layers
from tapmachine.training.loss import Objective
from tapmachine.training.starts import LIFETIME, Herded, Start, has_herded_states


class _Sampled(Objective):
    """F of the machine clamped to samples in place of F of the free one: its gradient is an average over the samples.

    In a deep machine the even layers are clamped, and the odd ones between them are summed over.
    """

    @abstractmethod
    def draw(self, context: Context, carry: Carry) -> Carry:
        """New samples: the states of all layers, of which the even ones are used, and what else is passed on."""

    def average(self, context: Context, values: Tensor) -> Tensor:
        """The mean of one value per sample, or this process's share of it."""
        return values.mean()

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        """What the next step starts from, given what was drawn and the fields on the odd layers."""
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
        # Rows and samples are states of the same layer, and one matrix product for both is faster than two.
        rows, drawn = context.rows, self.draw(context, carry)
        values, fields = summed_over_odd_layers(context.machine, [torch.cat((rows, drawn[0])), drawn[1]])
        on_data, on_samples = values.split((len(rows), len(drawn[0])))
        fields = {index: field[len(rows) :] for index, field in fields.items()}
        return on_data, self.average(context, on_samples), self.hand_on(context, drawn, fields)


class _GibbsSampled(_Sampled):
    """Samples after k sweeps of block Gibbs sampling."""

    def __init__(self, n_sweeps: int) -> None:
        self.n_sweeps = check_count(f"{type(self).__name__}: k", n_sweeps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_sweeps})"

    def sweep(self, context: Context, chain: list[Tensor]) -> Carry:
        """k sweeps; with layers, the last one without the odd layers, which F sums over."""
        machine, generator = context.machine, context.generator
        for done in range(1, self.n_sweeps + 1):
            if machine.is_pairwise:
                chain = sweep_chain(machine, chain, generator)
                continue
            chain = draw_layers(machine, chain, 0, generator)
            if done < self.n_sweeps:
                chain = draw_layers(machine, chain, 1, generator)
        return tuple(chain)


@final
class CD(_GibbsSampled):
    """Contrastive divergence: samples after k sweeps of block Gibbs sampling from the batch.

    Args:
        k: number of sweeps.
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
    """Persistent contrastive divergence: k sweeps of chains that persist from step to step.

    Args:
        k: number of sweeps.
        n_chains: number of chains (default: the batch size).
    """

    def __init__(self, k: int = 1, n_chains: int | None = None) -> None:
        super().__init__(k)
        self.n_chains = None if n_chains is None else check_count("n_chains", n_chains)

    def prepare(self, context: Context) -> Carry:
        count = self.n_chains or len(context.batch)
        rows = torch.arange(count, device=context.batch.device) % len(context.batch)
        return tuple(_upper_layers(context, context.batch[rows].clone()))

    def draw(self, context: Context, carry: Carry) -> Carry:
        return self.sweep(context, list(carry))

    def hand_on(self, context: Context, drawn: Carry, fields: dict[int, Tensor]) -> Carry:
        chain, layers = list(drawn), list(context.machine.layers)
        for index, field in fields.items():  # with which the sweep ends
            chain[index] = layers[index].sample(Tilt(field.detach(), 0.0), context.generator)
        return tuple(chain)


@final
class Chains(Start):
    """States of persistent chains as in `PCD`, for TAP solutions to start from.

    With `TAPObjective(Chains(10), n_sweeps=1)` the sweep replaces samples by means of their units, and training is
    about as good as with `PCD(10)`. Further sweeps move the particles away from the machine's distribution.

    Args:
        k: number of sweeps of the chains in each step.

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
        return PCD(self.k, n_particles).prepare(context)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        machine, pcd = context.machine, PCD(self.k, n_particles)
        drawn = pcd.draw(context, carry)
        odd = () if machine.is_pairwise else range(1, len(machine.layers), 2)
        fields = {index: machine.field_on(index, drawn) for index in odd}
        return drawn[0], pcd.hand_on(context, drawn, fields)

    def __repr__(self) -> str:
        return f"Chains({self.k})"


@final
class HerdedPCD(_Sampled):
    """Persistent contrastive divergence with deterministic, herded chains; see `Herded`.

    For `Binary`, `Spin` and `Categorical` units: other units would herd their means, which lack a variance.

    Args:
        k: number of sweeps.
        n_chains: number of chains (default: the batch size).
        lifetime: steps after which a chain restarts from the batch; None for never.
    """

    is_split = True

    def __init__(self, k: int = 10, n_chains: int | None = None, lifetime: int | None = LIFETIME) -> None:
        self.start = Herded(check_count("HerdedPCD: k", k), lifetime)
        self.n_chains = None if n_chains is None else check_count("n_chains", n_chains)

    def __repr__(self) -> str:
        lifetime = "" if self.start.lifetime == LIFETIME else f", lifetime={self.start.lifetime}"
        return f"HerdedPCD({self.start.n_sweeps}, n_chains={self.n_chains}{lifetime})"

    def prepare(self, context: Context) -> Carry:
        for index, units in enumerate(context.machine.layers):
            if not has_herded_states(units):
                raise ValueError(
                    f"layer {index}: HerdedPCD needs Binary, Spin or Categorical units, not {type(units).__name__}; "
                    "use TAPObjective(Herded())"
                )
        count = self.n_chains or len(context.batch)
        return context.share(self.start.prepare(context, count), count)

    def draw(self, context: Context, carry: Carry) -> Carry:
        with torch.no_grad():
            _, carry = self.start.begin(context, self.n_chains or len(context.batch), carry)
        return carry

    def average(self, context: Context, values: Tensor) -> Tensor:
        count = self.n_chains or len(context.batch)
        return values.mean() if context.world.size == 1 else values.sum() / count


def _upper_layers(context: Context, x: Tensor) -> list[Tensor]:
    """States of all layers, those above the visible one drawn from below."""
    chain, layers = [x], list(context.machine.layers)
    with torch.no_grad():
        for index in range(1, len(layers)):
            field = chain[-1].flatten(1) @ context.machine.weights[index - 1]
            tilt = Tilt(field.unflatten(-1, layers[index].state_shape), 0.0)
            chain.append(layers[index].sample(tilt, context.generator))
    # With several hidden layers, those drawn from below do not depend yet on the layers above them.
    return draw_layers(context.machine, chain, 1, context.generator) if len(layers) > 2 else chain
