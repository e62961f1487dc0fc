"""The adaptive TAP scheme."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.adaptive_tap.gaussian_side import gaussian_side
from tapmachine.solver.schemes.adaptive_tap.iteration import AdaptiveProcess, free_energy
from tapmachine.solver.schemes.adaptive_tap.layout import Layout
from tapmachine.solver.schemes.base import Scheme, refuse_mixed_states
from tapmachine.solver.schemes.process import Process


@final
class AdaptiveTAP(Scheme):
    """Adaptive TAP, whose reaction term accounts for correlations between couplings.

    TAP treats couplings as independent. For correlated couplings, as in trained machines, adaptive TAP is more
    accurate. It inverts one matrix per particle and sweep; in a layered machine, the matrix has the size of the smaller
    of two groups, the units of even layers and the units of odd layers. All unit types are supported; the states of
    categorical units are treated as separate units.

    Args:
        damping: Weight of the previous precisions in an update, at least 0 and less than 1 (default: 0.7).
        self_averaging: Whether all units of even layers share one variance, and all units of odd layers another
            (default: False). This option requires the singular values of W but no matrix inverse. It is accurate only
            for couplings without structure. For trained machines, TAP is more accurate.

    Example:
        >>> import torch
        >>> from tapmachine import TAP, AdaptiveTAP, Spin, exact_log_partition, pairwise, solve
        >>> magnet = pairwise(Spin(8).double(), weights=0.1 * (torch.ones(8, 8) - torch.eye(8)).double())
        >>> [round(float(-solve(magnet, scheme=s).free_energy - exact_log_partition(magnet)), 4)
        ...  for s in (TAP(), AdaptiveTAP())]
        [-0.0829, -0.0055]
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.7, self_averaging: bool = False) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; expected a number in [0, 1)")
        self.damping, self.self_averaging = damping, self_averaging

    def __repr__(self) -> str:
        return f"AdaptiveTAP(damping={self.damping}{', self_averaging=True' if self.self_averaging else ''})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        refuse_mixed_states(machine, "AdaptiveTAP")
        return AdaptiveProcess(machine, self.damping, self.self_averaging)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        layout = Layout(machine)
        couplings = gaussian_side(machine, layout, self.self_averaging, differentiable=True)
        return free_energy(list(machine.layers), layout, couplings, moments, tilts)
