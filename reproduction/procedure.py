"""Procedure of a reproduction: one switch for each difference between the paper and this package."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tapmachine.solver import TAP, Scheme

PRINTED_SWEEPS = 41  # maximum per training step: one sweep, then ten iterations of four sweeps
QUICK_PRINTED_SWEEPS = 5


@dataclass(frozen=True)
class Procedure:
    """Options for training and solving machines. The defaults are those of this package.

    Attributes:
        printed_iteration: Whether to iterate as in Alg. 1, with explicit sweeps and no damping. Training then uses up
            to 41 sweeps per step instead of 10 implicit, accelerated sweeps (default: False).
        unique_solutions: Whether to average the gradient over distinct solutions instead of particles (default:
            False).
        field_momentum: Whether to apply momentum to the parameters of the units. Alg. 2 applies it to the weights
            only (default: True).
        rescale: Whether to rescale real-valued data before training. Table I uses values in [0, 1] (default: True).
        centered: Whether to center gradients if the units support it, unlike in the paper (default: False).
    """

    printed_iteration: bool = False
    unique_solutions: bool = False
    field_momentum: bool = True
    rescale: bool = True
    centered: bool = False

    def scheme(self) -> Scheme:
        """Return the scheme used to find solutions."""
        return TAP("explicit", 0.0) if self.printed_iteration else TAP()

    def n_sweeps(self, accelerated: int, quick: bool) -> int:
        """Return the number of sweeps per training step.

        Args:
            accelerated: Number of sweeps of the accelerated iteration.
            quick: Whether the run is quick.
        """
        return (QUICK_PRINTED_SWEEPS if quick else PRINTED_SWEEPS) if self.printed_iteration else accelerated

    def switched(self, names: Sequence[str]) -> "Procedure":
        """Return the procedure with some switches that differ from their defaults."""
        return replace(self, **{name: not getattr(Procedure(), name) for name in names})

    def differences(self) -> dict[str, bool]:
        """Return the switches that differ from their defaults."""
        defaults = asdict(Procedure())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @property
    def name(self) -> str:
        """Name of the procedure as part of a directory name; empty for the default procedure."""
        if self == AS_PRINTED:
            return "as-printed"
        return "-".join(name.replace("_", "-") if value else f"no-{name}" for name, value in self.differences().items())


SWITCHES = tuple(asdict(Procedure()))  # the first four are those of the paper
AS_PRINTED = Procedure().switched(SWITCHES[:4])
