"""Mean-field schemes, and the solver for their fixed points."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

if TYPE_CHECKING:
    from tapmachine.beliefs import Solution as Solution
    from tapmachine.beliefs import Status as Status
    from tapmachine.solver.driver import solve as solve
    from tapmachine.solver.merging import merge_solutions as merge_solutions
    from tapmachine.solver.schemes.adaptive_tap.scheme import AdaptiveTAP as AdaptiveTAP
    from tapmachine.solver.schemes.base import Scheme as Scheme
    from tapmachine.solver.schemes.belief_propagation import BeliefPropagation as BeliefPropagation
    from tapmachine.solver.schemes.belief_propagation import RelaxedBP as RelaxedBP
    from tapmachine.solver.schemes.mean_field import TAP as TAP
    from tapmachine.solver.schemes.mean_field import NaiveMeanField as NaiveMeanField
    from tapmachine.solver.schemes.third_order import ThirdOrderTAP as ThirdOrderTAP
    from tapmachine.solver.starts import noisy_start as noisy_start
    from tapmachine.solver.starts import random_start as random_start

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
