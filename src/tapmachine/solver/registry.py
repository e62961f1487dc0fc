"""Names of the mean-field schemes, as used by the command line."""

from collections.abc import Callable

from tapmachine.solver import (
    TAP,
    AdaptiveTAP,
    BeliefPropagation,
    NaiveMeanField,
    RelaxedBP,
    Scheme,
    ThirdOrderTAP,
)

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "naive-mean-field": NaiveMeanField,
    "tap": TAP,
    "third-order-tap": ThirdOrderTAP,
    "relaxed-bp": RelaxedBP,
    "belief-propagation": BeliefPropagation,
    "adaptive-tap": AdaptiveTAP,
}
