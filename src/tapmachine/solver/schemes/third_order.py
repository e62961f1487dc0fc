"""Third order of the expansion in the couplings, whose second order is TAP."""

from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.process import Process
from tapmachine.solver.schemes.couplings import Couplings
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.units import Units
from tapmachine.units.binary import TwoStates
from tapmachine.units.conditioned import unconditioned


@final
class ThirdOrderTAP(TAP):
    """Third-order TAP, for units whose variance is a function of their mean: Binary and Spin.

    With the third cumulant k = c·dc/da it adds −⅙ΣW³kk' to F, and in a pairwise machine the triangles
    −Σ_{i<j<k} J_ij J_jk J_ki c_i c_j c_k. The update is explicit.

    Args:
        damping: As for `TAP`.
    """

    def __init__(self, damping: float | None = None) -> None:
        super().__init__("explicit", damping)

    def __repr__(self) -> str:
        return f"ThirdOrderTAP({'' if self.damping is None else f'damping={self.damping}'})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        for layer_index, layer in enumerate(machine.layers):
            _two_states(layer, layer_index)
        return super().bind(machine)

    def tilt(self, layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Tilt:
        second = super().tilt(layers, couplings, layer_index, moments)
        mean, variance = moments[layer_index]
        slope = _two_states(layers[layer_index], layer_index).variance_slope(mean)  # dc/da
        # dk/da = (dc/da)² + c·d²c/da², where d²c/da² = −2
        field = second.field + _cubic(layers, couplings, layer_index, moments) * (slope**2 - 2 * variance) / 6
        if couplings.is_pairwise:
            field = field + 0.5 * slope * _triangles(couplings, variance)
        return Tilt(field, second.precision)

    def respond(self, layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Moments:
        return layers[layer_index].moments(self.tilt(layers, couplings, layer_index, moments))

    def value(self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]) -> Tensor:
        value = super().value(layers, couplings, moments, tilts)
        for layer_index in couplings.receivers:
            third = _third_cumulant(layers, layer_index, moments)
            terms = _cubic(layers, couplings, layer_index, moments) * third
            value = value - couplings.share / 6 * terms.sum(-1, dtype=torch.float64)
        if couplings.is_pairwise:
            variance = moments[0].variance
            value = value - (variance * _triangles(couplings, variance)).sum(-1, dtype=torch.float64) / 6
        return value


def _third_cumulant(layers: list[Units], layer_index: int, moments: list[Moments]) -> Tensor:
    """k = c·dc/da."""
    mean, variance = moments[layer_index]
    return variance * _two_states(layers[layer_index], layer_index).variance_slope(mean)


def _cubic(layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Tensor:
    """ΣW³k', with the third cumulants k' of the neighbors."""
    cubic = torch.zeros_like(moments[layer_index].mean)
    for sender in couplings.senders[layer_index]:
        third = _third_cumulant(layers, sender.layer_index, moments)
        cubic = cubic + third @ (sender.weights * sender.squares)
    return cubic


def _triangles(couplings: Couplings, variance: Tensor) -> Tensor:  # (K, n) -> (K, n)
    """Σ_jk J_ij c_j J_jk c_k J_ki of every unit i."""
    J = couplings.senders[0][0].weights
    weighted = variance.unsqueeze(-1) * J  # c_j J_jk
    return ((J @ weighted) * weighted.mT).sum(-1)


def _two_states(layer: Units, layer_index: int) -> TwoStates:
    base = unconditioned(layer)
    if not isinstance(base, TwoStates):
        raise ValueError(
            f"layer {layer_index}: ThirdOrderTAP requires units whose variance is a function of their mean (Binary or "
            f"Spin), not {type(base).__name__}; use TAP"
        )
    return base
