"""All figures, by label. Importing a module adds its figures."""

from reproduction import claims, landscape, maps, parameters, small_machine  # noqa: F401
from reproduction.figure import FIGURES as FIGURES

FIGURES["claims"] = FIGURES.pop("claims")  # to the end, because claims read the tables of other figures
