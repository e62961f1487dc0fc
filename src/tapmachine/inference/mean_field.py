"""The mean-field schemes: naive, TAP, and the third order of the same expansion."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.couplings import Couplings, Incoming, free_energy
from tapmachine.inference.explicit import DampedDescent, FixedDamping, SequentialDescent
from tapmachine.inference.layered import LayeredDescent
from tapmachine.inference.process import Process
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units
from tapmachine.units.binary import TwoStates

Update = Literal["implicit", "explicit", "sequential"]


class Scheme(ABC):
    """A way to approximate a machine by fixed points: equations for the units' moments, and a free energy.

    Attributes:
        can_be_captured: whether a training step, which binds it to the machine anew, can be a CUDA graph.
    """

    can_be_captured: bool = True

    @abstractmethod
    def bind(self, machine: BoltzmannMachine) -> Process:
        """The iteration that solves the equations on a machine."""

    @abstractmethod
    def free_energy(
        self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]
    ) -> Tensor:  # (K,)
        """F at given moments and the tilts they arise from, in float64, differentiable in the machine's parameters.

        At a solution F is stationary in the moments, so that this is F's gradient if the moments are held fixed.

        Example:
            >>> from tapmachine import TAP, Binary, rbm, solve
            >>> machine = rbm(Binary(4), Binary(2))
            >>> solution = solve(machine)
            >>> TAP().free_energy(machine, solution.moments, solution.tilts).sum().backward()
            >>> machine.weights[0].grad.shape
            torch.Size([4, 2])
        """


class MeanField(Scheme):
    """The schemes of the expansion in the couplings, and how to iterate them. For the arguments see `TAP`."""

    def __init__(self, update: Update | None = None, damping: float | None = None, accelerate: bool = True) -> None:
        if update not in (None, "implicit", "explicit", "sequential"):
            raise ValueError(f"update is {update!r}; it must be 'implicit', 'explicit' or 'sequential'")
        if damping is not None and not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; it must be at least 0 and less than 1")
        if damping is not None and update != "explicit":
            raise ValueError("damping is for update='explicit' only")
        self.update, self.damping, self.accelerate = update, damping, accelerate

    def __repr__(self) -> str:
        given = [f"update={self.update!r}"] if self.update else []
        given += [f"damping={self.damping}"] if self.damping is not None else []
        given += [] if self.accelerate else ["accelerate=False"]
        return f"{type(self).__name__}({', '.join(given)})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        couplings = Couplings(machine)
        update = self.update or ("explicit" if machine.is_pairwise else "implicit")
        if update == "implicit":
            if machine.is_pairwise:
                raise ValueError(
                    "update='implicit' needs layers; for a pairwise machine use 'sequential' or 'explicit'"
                )
            return LayeredDescent(self, couplings, self.accelerate)
        if update == "sequential":
            if not machine.is_pairwise:
                raise ValueError("update='sequential' is for a pairwise machine; with layers use 'implicit'")
            return SequentialDescent(self, couplings)
        if self.damping is not None:
            return FixedDamping(self, couplings, self.damping)
        return DampedDescent(self, couplings)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return self.value(machine.units(), Couplings(machine, differentiable=True), list(moments), list(tilts))

    @abstractmethod
    def incoming(self, couplings: Couplings, layer: int, moments: list[Moments]) -> Incoming:
        """The field on a layer's units, to this order."""

    def tilt(self, layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Tilt:
        """The tilt that a layer gets where all layers have the given moments."""
        return self.incoming(couplings, layer, moments).tilt(moments[layer].mean)

    def respond(self, layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Moments:
        """The moments of a layer under that tilt."""
        field, reaction = self.incoming(couplings, layer, moments)
        return layers[layer].respond(field, reaction, moments[layer].mean)

    def value(
        self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]
    ) -> Tensor:  # (K,), float64
        """F, from couplings that are arranged already."""
        incoming = [self.incoming(couplings, layer, moments) for layer in couplings.receivers]
        return free_energy(layers, couplings, moments, tilts, incoming)


@final
class NaiveMeanField(MeanField):
    """The first order: every unit sees the mean of its neighbours, B = ΣWa', A = 0. Arguments as for `TAP`."""

    def incoming(self, couplings: Couplings, layer: int, moments: list[Moments]) -> Incoming:
        field = couplings.field(layer, moments)
        states = couplings.shapes[layer][1:]
        return Incoming(field, field.new_zeros(()).expand(field.shape + states))


@final
class TAP(MeanField):
    """The second order, in two moments, for every unit type: A = −ΣW²c', B = Aa + ΣWa' [eq:tapFE], [alg:rbmInf].

    It is an expansion in the couplings. Where they are strong, F has minima that mean nothing: its term −½ΣW²cc' is
    bounded by nothing, and rewards moments without information (for spins, a ≈ 0). Such a solution is converged, but
    its −F may lie far above ln Z: its F is much lower than where data lead to, or than `NaiveMeanField` finds.

    Args:
        update: "implicit" solves for the units of every other layer exactly with those between them fixed, so that F
            falls with every half-sweep. "explicit" puts the last moments into the equations, as the paper does, in
            parallel over a pairwise machine. "sequential", for a pairwise machine, solves for one unit after the other
            exactly; it is slow. The default is "implicit", and "explicit" for a pairwise machine.
        damping: how much of the last moments an explicit update keeps, from 0 (as the paper) to less than 1. The
            default adapts it for each particle so that F falls.
        accelerate: whether implicit sweeps are extrapolated where that lowers F further.
    """

    def incoming(self, couplings: Couplings, layer: int, moments: list[Moments]) -> Incoming:
        return couplings.incoming(layer, moments)


@final
class ThirdOrderTAP(MeanField):
    """The third order, for units whose variance is a function of their mean: Binary and Spin.

    With the third cumulant k = c·dc/da it adds −⅙ΣW³kk' to F, and in a pairwise machine the triangles
    −Σ_{i<j<k} J_ij J_jk J_ki c_i c_j c_k. The update is explicit.

    Args:
        damping: as for `TAP`.
    """

    def __init__(self, damping: float | None = None) -> None:
        super().__init__("explicit", damping)

    def __repr__(self) -> str:
        return f"ThirdOrderTAP({'' if self.damping is None else f'damping={self.damping}'})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        for number, layer in enumerate(machine.units()):
            _two_states(layer, number)
        return super().bind(machine)

    def incoming(self, couplings: Couplings, layer: int, moments: list[Moments]) -> Incoming:
        return couplings.incoming(layer, moments)

    def tilt(self, layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Tilt:
        second = super().tilt(layers, couplings, layer, moments)
        mean, variance = moments[layer]
        slope = _two_states(layers[layer], layer).variance_slope(mean)
        # dk/da = (dc/da)² + c·d²c/da², where d²c/da² = −2
        field = second.field + _cubic(layers, couplings, layer, moments) * (slope**2 - 2 * variance) / 6
        if couplings.is_pairwise:
            field = field + 0.5 * slope * _triangles(couplings, variance)
        return Tilt(field, second.precision)

    def respond(self, layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Moments:
        return layers[layer].moments(self.tilt(layers, couplings, layer, moments))

    def value(self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]) -> Tensor:
        total = super().value(layers, couplings, moments, tilts)
        for layer in couplings.receivers:
            cubic = _cubic(layers, couplings, layer, moments) * _third_cumulant(layers[layer], layer, moments[layer])
            total = total - couplings.share / 6 * cubic.sum(-1, dtype=torch.float64)
        if couplings.is_pairwise:
            variance = moments[0].variance
            total = total - (variance * _triangles(couplings, variance)).sum(-1, dtype=torch.float64) / 6
        return total


def _third_cumulant(layer: Units, number: int, moments: Moments) -> Tensor:
    mean, variance = moments
    return variance * _two_states(layer, number).variance_slope(mean)


def _cubic(layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Tensor:
    """ΣW³k', with the third cumulants k' of the neighbours."""
    total = torch.zeros_like(moments[layer].mean)
    for sender in couplings.senders[layer]:
        third = _third_cumulant(layers[sender.layer], sender.layer, moments[sender.layer])
        total = total + third @ (sender.weights * sender.squares)
    return total


def _triangles(couplings: Couplings, variance: Tensor) -> Tensor:  # (K, n) -> (K, n)
    """Σ_jk J_ij c_j J_jk c_k J_ki of every unit i."""
    J = couplings.senders[0][0].weights
    weighted = variance.unsqueeze(-1) * J  # c_j J_jk
    return ((J @ weighted) * weighted.mT).sum(-1)


def _two_states(layer: Units, number: int) -> TwoStates:
    base: nn.Module = layer
    while isinstance(getattr(base, "base", None), nn.Module):  # conditioned units are still what they are made of
        base = base.get_submodule("base")
    if not isinstance(base, TwoStates):
        raise ValueError(
            f"layer {number}: ThirdOrderTAP needs units whose variance is a function of their mean, Binary or Spin; "
            f"{type(base).__name__} is not one; use TAP"
        )
    return base
