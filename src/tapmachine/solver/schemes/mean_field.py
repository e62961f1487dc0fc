"""Mean-field schemes: naive mean field and TAP, the first two orders of an expansion in the couplings.

Each unit is its prior under a tilt exp(Bx − ½Ax²), which its neighbors' means a' and variances c' determine [eq:tapFE]:

    NaiveMeanField:  A = 0,         B = ΣWa'
    TAP:             A = −ΣW²c',    B = ΣWa' − (ΣW²c') a

and a, c are the mean and variance of the unit under that tilt. A solution satisfies this for all units at once. The
iterations are in `layered` and `explicit`; the third order is in `third_order`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, final

from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.process import Process
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.couplings import Couplings, Incoming, free_energy, total
from tapmachine.solver.schemes.explicit import DampedDescent, FixedDamping, SequentialDescent
from tapmachine.solver.schemes.layered import LayeredDescent
from tapmachine.units import Units

Update = Literal["implicit", "explicit", "sequential"]


class MeanField(Scheme):
    """Scheme of the expansion in the couplings: its equations, and how they are iterated.

    For the arguments see `TAP`.
    """

    def __init__(self, update: Update | None = None, damping: float | None = None, accelerate: bool = True) -> None:
        if update not in (None, "implicit", "explicit", "sequential"):
            raise ValueError(f"update is {update!r}; it must be 'implicit', 'explicit' or 'sequential'")
        if damping is not None and not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; it must be at least 0 and less than 1")
        if damping is not None and update != "explicit":
            raise ValueError("damping requires update='explicit'")
        self.update, self.damping, self.accelerate = update, damping, accelerate

    def __repr__(self) -> str:
        options = [f"update={self.update!r}"] if self.update else []
        options += [f"damping={self.damping}"] if self.damping is not None else []
        options += [] if self.accelerate else ["accelerate=False"]
        return f"{type(self).__name__}({', '.join(options)})"

    # ----- the equations

    @abstractmethod
    def incoming(self, couplings: Couplings, layer_index: int, moments: list[Moments]) -> Incoming:
        """Mean θ and variance κ of the field ΣWx' on a layer, from the moments of all layers."""

    @abstractmethod
    def tilt(
        self,
        layers: list[Units],
        couplings: Couplings,
        layer_index: int,
        moments: list[Moments],
        tilts: list[Tilt] | None = None,
    ) -> Tilt:
        """Tilt B, A on a layer's units, from the moments of all layers.

        `tilts`, those that the moments arise from, are for schemes that need more of a unit than its moments.
        """

    def respond(self, layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Moments:
        """Mean a and variance c of a layer's units under this tilt."""
        mean, variance = self.incoming(couplings, layer_index, moments)
        return layers[layer_index].respond(mean, variance, moments[layer_index].mean)

    def value(
        self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]
    ) -> Tensor:  # (K,), float64
        """F, from couplings that are already arranged."""
        incoming = [self.incoming(couplings, layer_index, moments) for layer_index in couplings.receivers]
        return free_energy(layers, couplings, moments, tilts, incoming)

    # ----- iterations

    def bind(self, machine: BoltzmannMachine) -> Process:
        couplings = Couplings(machine)
        update = self.update or ("explicit" if machine.is_pairwise else "implicit")
        if update == "implicit":
            if machine.is_pairwise:
                raise ValueError(
                    "update='implicit' requires layers; for a pairwise machine use 'sequential' or 'explicit'"
                )
            return LayeredDescent(self, couplings, self.accelerate)
        if update == "sequential":
            if not machine.is_pairwise:
                raise ValueError("update='sequential' requires a pairwise machine; with layers use 'implicit'")
            return SequentialDescent(self, couplings)
        if self.damping is not None:
            return FixedDamping(self, couplings, self.damping)
        return DampedDescent(self, couplings)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return self.value(list(machine.layers), Couplings(machine, differentiable=True), list(moments), list(tilts))


@final
class NaiveMeanField(MeanField):
    """Naive mean field, the first order: each unit sees only the means of its neighbors, B = ΣWa', A = 0.

    For the arguments see `TAP`.
    """

    def incoming(self, couplings: Couplings, layer_index: int, moments: list[Moments]) -> Incoming:
        senders = couplings.senders[layer_index]
        mean = total([sender.send_mean(moments[sender.layer_index]) for sender in senders])  # θ = Σ W a'
        shape = (len(mean), *couplings.reaction_shapes[layer_index])
        return Incoming(mean, variance=mean.new_zeros(()).expand(shape))  # κ = 0

    def tilt(
        self,
        layers: list[Units],
        couplings: Couplings,
        layer_index: int,
        moments: list[Moments],
        tilts: list[Tilt] | None = None,
    ) -> Tilt:
        incoming = self.incoming(couplings, layer_index, moments)
        return Tilt(field=incoming.mean, precision=incoming.mean.new_zeros(()).expand_as(incoming.mean))  # B = θ, A = 0


class TAP(MeanField):
    """The Thouless–Anderson–Palmer equations, the second order, for every unit type [eq:tapFE], [alg:rbmInf].

    With a', c' the mean and variance of the neighbors and a the mean of the unit itself,

        A = −ΣW²c',    B = ΣWa' − (ΣW²c') a,

    where the last term is Onsager's reaction: it removes the unit's own effect on the neighbors' means.

    This is an expansion in the couplings. If they are strong, F has spurious minima: its term −½ΣW²cc' is unbounded and
    favors moments without information (for spins, a ≈ 0). Such a solution has converged, but its −F may be far above
    ln Z: its F is much lower than that of solutions from data or of `NaiveMeanField`.

    Args:
        update: "implicit" solves for alternating layers exactly with the others fixed, so that F decreases with every
            half-sweep. "explicit" inserts the previous moments into the equations, as in the paper, in parallel over a
            pairwise machine. "sequential", for a pairwise machine, solves exactly for one unit at a time; it is slow.
            Default: "implicit", or "explicit" for a pairwise machine.
        damping: Weight of the previous moments in an explicit update, from 0 (as in the paper) to less than 1. By
            default it is adapted for each particle so that F decreases.
        accelerate: Whether to extrapolate implicit sweeps if that lowers F further.
    """

    def incoming(self, couplings: Couplings, layer_index: int, moments: list[Moments]) -> Incoming:
        sent = [sender.send(moments[sender.layer_index]) for sender in couplings.senders[layer_index]]
        mean = total([Wa for Wa, _ in sent])  # θ = Σ W a'
        variance = total([W2c for _, W2c in sent])  # κ = Σ W² c'
        return Incoming(mean, variance)

    def tilt(
        self,
        layers: list[Units],
        couplings: Couplings,
        layer_index: int,
        moments: list[Moments],
        tilts: list[Tilt] | None = None,
    ) -> Tilt:
        incoming = self.incoming(couplings, layer_index, moments)
        return layers[layer_index].tilt_in(*incoming, moments[layer_index].mean)  # B = θ − κa, A = −κ
