"""Mean-field schemes, and the solver for their fixed points."""

from tapmachine.beliefs import Solution, Status
from tapmachine.solver.driver import solve
from tapmachine.solver.merging import merge_solutions
from tapmachine.solver.schemes.adaptive_tap.scheme import AdaptiveTAP
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.belief_propagation import BeliefPropagation, RelaxedBP
from tapmachine.solver.schemes.mean_field import TAP, NaiveMeanField
from tapmachine.solver.schemes.third_order import ThirdOrderTAP
from tapmachine.solver.starts import noisy_start, random_start

__all__ = [
    "TAP",
    "AdaptiveTAP",
    "BeliefPropagation",
    "NaiveMeanField",
    "RelaxedBP",
    "Scheme",
    "Solution",
    "Status",
    "ThirdOrderTAP",
    "merge_solutions",
    "noisy_start",
    "random_start",
    "solve",
]
