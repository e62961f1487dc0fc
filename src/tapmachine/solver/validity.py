"""Which machines have mean-field solutions, and the default scheme of a machine."""

from tapmachine.data.errors import EstimateError
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import models_correlations
from tapmachine.solver.schemes.adaptive_tap.scheme import AdaptiveTAP
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.units import Mixed


def default_scheme(machine: BoltzmannMachine) -> Scheme:
    """Return the mean-field scheme for a machine: `TAP()`, or `AdaptiveTAP()` for real-valued tables.

    Plain TAP has no solution for the strong couplings of correlated columns.
    """
    return AdaptiveTAP() if models_correlations(machine) else TAP()


def has_mean_field(machine: BoltzmannMachine) -> bool:
    """Return whether solutions describe a machine; False for machines of tables, which are solved exactly."""
    if models_correlations(machine):
        return False
    return not isinstance(machine.layers[0], Mixed) or mixture_of(machine) is None


def check_mean_field(machine: BoltzmannMachine) -> None:
    """Raise an EstimateError for a machine fitted to a real-valued table, since such a machine has no TAP solutions."""
    if models_correlations(machine):
        raise EstimateError(
            "TAP has no solution for a machine fitted to a real-valued table, because its hidden Gaussian units "
            "represent the correlations between columns; use scores, samples and posteriors, which do not require TAP"
        )
