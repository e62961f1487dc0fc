"""What a reproduction may do as the paper prints it, or as this package does it: one switch for each difference."""

from dataclasses import asdict, dataclass

from tapmachine.solver import TAP, Scheme

PRINTED_SWEEPS = 41  # in training, at most: the first, and steps of four
QUICK_PRINTED_SWEEPS = 5


@dataclass(frozen=True)
class Procedure:
    """How machines are trained and solved. The defaults are this package's; `AS_PRINTED` is the paper's.

    Attributes:
        printed_iteration: solve by Alg. 1 as printed: explicit sweeps without damping, in training up to 41 of them,
            rather than 10 implicit, accelerated ones.
        unique_solutions: average the gradient over the distinct solutions, rather than over the particles.
        field_momentum: apply momentum to the parameters of the units as well; Alg. 2 has it for the weights only.
        rescale: train real values in units of about 0.3 standard deviations, rather than in those of Table I, [0, 1].
        centered: center gradients where the units allow it, which the paper does not.
    """

    printed_iteration: bool = False
    unique_solutions: bool = False
    field_momentum: bool = True
    rescale: bool = True
    centered: bool = False

    @property
    def objective(self) -> str:
        """The word for the objective in the settings of a run."""
        average = "tap-unique" if self.unique_solutions else "tap-average"
        return f"{average}-explicit" if self.printed_iteration else average

    def scheme(self) -> Scheme:
        """The scheme that solutions are found with."""
        return TAP("explicit", 0.0) if self.printed_iteration else TAP()

    def n_sweeps(self, accelerated: int, quick: bool) -> int:
        """Sweeps of a training step, where the accelerated iteration makes so many."""
        return (QUICK_PRINTED_SWEEPS if quick else PRINTED_SWEEPS) if self.printed_iteration else accelerated

    def differences(self) -> dict[str, bool]:
        """The switches that are not at their defaults."""
        usual = asdict(Procedure())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @property
    def name(self) -> str:
        """As part of the name of a folder; empty for the default."""
        if self == AS_PRINTED:
            return "as-printed"
        return "-".join(name.replace("_", "-") if value else f"no-{name}" for name, value in self.differences().items())


AS_PRINTED = Procedure(printed_iteration=True, unique_solutions=True, field_momentum=False, rescale=False)
