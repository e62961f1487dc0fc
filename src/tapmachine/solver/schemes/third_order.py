"""Third-order TAP, the third order of the expansion in the couplings.

Let κ₃(a, c) be the third cumulant of a unit as a function of its mean and variance. The third-order term of F is

    −⅙ΣW³κ₃κ₃',    in a pairwise machine also −Σ_{i<j<k} J_ij J_jk J_ki c_i c_j c_k.

At a stationary point of F, the tilts have the same form as in TAP, A = −κ and B = θ − κa, but with

    θ = ΣWa'  + ⅙ ∂κ₃/∂a ΣW³κ₃',
    κ = ΣW²c' + ⅓ ∂κ₃/∂c ΣW³κ₃' + Σ_jk J_ij c_j J_jk c_k J_ki.

The third cumulant of a unit and its derivatives are computed from the tilt on the unit.
"""

from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.couplings import Couplings, total
from tapmachine.solver.schemes.explicit import DampedDescent
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.solver.schemes.process import Process
from tapmachine.units import Units


@final
class ThirdOrderTAP(TAP):
    """Third-order TAP for all unit types except `Categorical`.

    The scheme adds the term −⅙ΣW³κ₃κ₃' to F, where κ₃ is the third cumulant of a unit. In a pairwise machine, it also
    adds −Σ_{i<j<k} J_ij J_jk J_ki c_i c_j c_k. Units that are symmetric under their tilts, such as Gaussian units, have
    κ₃ = 0. If all units on one side of the couplings of a layered machine are symmetric, the solutions are the same as
    with TAP. The update is explicit, with a damping that is adapted for each particle so that F decreases.

    Example:
        >>> from tapmachine import Binary, ThirdOrderTAP, rbm, solve
        >>> solve(rbm(Binary(4), Binary(2)), scheme=ThirdOrderTAP()).free_energy.shape
        torch.Size([1])
    """

    def __init__(self) -> None:
        super().__init__("explicit")

    def __repr__(self) -> str:
        return "ThirdOrderTAP()"

    def bind(self, machine: BoltzmannMachine) -> Process:
        for layer_index, layer in enumerate(machine.layers):
            if layer.categorical_blocks:
                raise ValueError(f"layer {layer_index}: ThirdOrderTAP does not support Categorical units; use TAP()")
        return DampedDescent(self, Couplings(machine))

    def tilt(
        self,
        layers: list[Units],
        couplings: Couplings,
        layer_index: int,
        moments: list[Moments],
        tilts: list[Tilt] | None = None,
    ) -> Tilt:
        if tilts is None:  # a starting point: its third cumulants are unknown
            return super().tilt(layers, couplings, layer_index, moments)
        units = layers[layer_index]
        field, reaction = self.incoming(couplings, layer_index, moments)  # ΣWa', ΣW²c'
        slopes = units.third_cumulant_slopes(tilts[layer_index])  # ∂κ₃/∂a, ∂κ₃/∂c
        neighbors = [sender.layer_index for sender in couplings.senders[layer_index]]
        cubic = _cubic(couplings, layer_index, {i: layers[i].third_cumulant(tilts[i]) for i in neighbors})  # ΣW³κ₃'
        field, reaction = field + slopes.by_mean * cubic / 6, reaction + slopes.by_variance * cubic / 3
        if couplings.is_pairwise:
            reaction = reaction + _triangles(couplings, moments[0].variance)
        return units.tilt_with_reaction(field, reaction, moments[layer_index].mean)

    def value(self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]) -> Tensor:
        value = super().value(layers, couplings, moments, tilts)
        thirds = dict(enumerate(map(_third_cumulant, layers, moments, tilts)))
        for layer_index in couplings.receivers:
            terms = _cubic(couplings, layer_index, thirds) * thirds[layer_index]  # ΣW³κ₃κ₃'
            value = value - couplings.multiplicity / 6 * terms.sum(-1, dtype=torch.float64)
        if couplings.is_pairwise:
            variance = moments[0].variance
            value = value - (variance * _triangles(couplings, variance)).sum(-1, dtype=torch.float64) / 6
        return value


def _third_cumulant(units: Units, moments: Moments, tilt: Tilt) -> Tensor:
    """Expand κ₃(a, c) around the moments under the tilt, so that gradients are computed at fixed moments."""
    third, slopes, (mean, variance) = units.third_cumulant(tilt), units.third_cumulant_slopes(tilt), units.moments(tilt)
    return third + slopes.by_mean * (moments.mean - mean) + slopes.by_variance * (moments.variance - variance)


def _cubic(couplings: Couplings, layer_index: int, thirds: dict[int, Tensor]) -> Tensor:
    """Compute ΣW³κ₃', with the third cumulants κ₃' of the neighbors."""
    senders = couplings.senders[layer_index]
    return total([thirds[sender.layer_index] @ (sender.weights * sender.squares) for sender in senders])


def _triangles(couplings: Couplings, variance: Tensor) -> Tensor:  # (K, n) -> (K, n)
    """Compute Σ_jk J_ij c_j J_jk c_k J_ki for every unit i."""
    J = couplings.senders[0][0].weights
    weighted = variance.unsqueeze(-1) * J  # c_j J_jk
    return ((J @ weighted) * weighted.mT).sum(-1)
