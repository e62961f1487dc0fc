"""Mean-field schemes: naive mean field and TAP, the first two orders of an expansion in the couplings.

The prior of each unit is multiplied by a tilt exp(Bx − ½Ax²), which depends on the means a' and variances c' of the
unit's neighbors [eq:tapFE]:

    NaiveMeanField:  A = 0,         B = ΣWa'
    TAP:             A = −ΣW²c',    B = ΣWa' − (ΣW²c') a

Here, a and c are the mean and variance of the unit under its tilt. A solution satisfies these equations for all units.
The iterations are implemented in `layered` and `explicit`, and the third order in `third_order`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, final

from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.couplings import Couplings, Incoming, free_energy, total
from tapmachine.solver.schemes.explicit import DampedDescent
from tapmachine.solver.schemes.layered import LayeredDescent
from tapmachine.solver.schemes.process import Process
from tapmachine.units import Units

Update = Literal["implicit", "explicit"]


class MeanField(Scheme):
    """Base class for schemes that are based on an expansion in the couplings.

    See `TAP` for the arguments.
    """

    def __init__(self, update: Update | None = None, damping: float | None = None, accelerate: bool = True) -> None:
        if update not in (None, "implicit", "explicit"):
            raise ValueError(f"update is {update!r}; expected 'implicit' or 'explicit'")
        if damping is not None and not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; expected a number in [0, 1)")
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
        """Compute the mean θ and variance κ of the field ΣWx' on a layer from the moments of all layers."""

    @abstractmethod
    def tilt(
        self,
        layers: list[Units],
        couplings: Couplings,
        layer_index: int,
        moments: list[Moments],
        tilts: list[Tilt] | None = None,
    ) -> Tilt:
        """Compute the tilt (B, A) on a layer's units from the moments of all layers.

        `tilts` are the tilts under which the units have these moments. Only schemes that require higher cumulants of
        the units use these tilts.
        """

    def value(
        self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]
    ) -> Tensor:  # (K,), float64
        """Compute the free energy F of each particle."""
        incoming = [self.incoming(couplings, layer_index, moments) for layer_index in couplings.receivers]
        return free_energy(layers, couplings, moments, tilts, incoming)

    # ----- iterations

    def bind(self, machine: BoltzmannMachine) -> Process:
        couplings = Couplings(machine)
        update = self.update or ("explicit" if machine.is_pairwise else "implicit")
        if update == "implicit":
            if machine.is_pairwise:
                raise ValueError("update='implicit' requires layers; for a pairwise machine, use 'explicit'")
            return LayeredDescent(self, couplings, self.accelerate)
        return DampedDescent(self, couplings, self.damping)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return self.value(list(machine.layers), Couplings(machine, differentiable=True), list(moments), list(tilts))


@final
class NaiveMeanField(MeanField):
    """Naive mean field, the first order of the expansion, with B = ΣWa' and A = 0.

    The tilt on each unit depends only on the means of its neighbors. See `TAP` for the arguments.

    Example:
        >>> from tapmachine import Binary, NaiveMeanField, rbm, solve
        >>> solve(rbm(Binary(4), Binary(2)), scheme=NaiveMeanField()).free_energy.shape
        torch.Size([1])
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
    """Thouless–Anderson–Palmer equations, the second order of the expansion [eq:tapFE], [alg:rbmInf].

    All unit types are supported. Let a be the mean of a unit, and a' and c' the means and variances of its neighbors.
    The tilt on the unit is

        A = −ΣW²c',    B = ΣWa' − (ΣW²c') a.

    The last term, the Onsager reaction, removes the effect of the unit on itself through the means of its neighbors.

    TAP is an expansion in the couplings. If the couplings are strong, F has spurious minima, because the term −½ΣW²cc'
    is unbounded and favors moments without information (for spins, a ≈ 0). The iteration may converge to such a
    minimum, at which −F may be far above ln Z. To detect a spurious minimum, compare its F with that of solutions
    started from data and that of `NaiveMeanField` solutions, which are much higher.

    Args:
        update: Type of update (default: "implicit" for a layered machine, "explicit" for a pairwise machine).
            "implicit" solves exactly for alternating layers with the other layers held fixed, so F decreases with every
            half-sweep. "explicit" inserts the previous moments into the equations, as in the paper; all units of a
            pairwise machine are updated in parallel.
        damping: Weight of the previous tilts in an explicit update, at least 0 (as in the paper) and less than 1. By
            default, it is adapted for each particle so that F decreases.
        accelerate: Whether to extrapolate implicit sweeps if this lowers F further (default: True).

    Example:
        >>> from tapmachine import TAP, Binary, rbm, solve
        >>> solve(rbm(Binary(4), Binary(2)), scheme=TAP()).free_energy.shape
        torch.Size([1])
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
        return layers[layer_index].tilt_with_reaction(*incoming, moments[layer_index].mean)  # B = θ − κa, A = −κ
