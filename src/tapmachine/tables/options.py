"""Options of a machine for the rows of a table. The module does not import torch, so that `--help` is fast."""

from dataclasses import dataclass, fields

from tapmachine.data.declarations import (
    COLUMN_KINDS,
    FINITE,
    INTERVAL,
    SIZES,
    check_value,
    option_of,
    pairs_from_text,
    setting,
)
from tapmachine.data.errors import SettingsError
from tapmachine.units.registry import UNIT_TYPES, hidden_words, visible_words


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Layers of a machine, and the form of the rows that it is trained on."""

    hidden: tuple[int, ...] = setting((100,), "Number of hidden units, or of each hidden layer, as in 500,200.", SIZES)
    visible: str = setting(
        "auto",
        "Type of the visible units: {choices}. With auto, the type is inferred from the data.",
        choices=visible_words,
    )
    hidden_units: str = setting(
        "auto",
        "Type of the hidden units: {choices}. With auto, tables are fitted with classes of rows, "
        "correlations and heavy tails, and the units of other machines are binary.",
        choices=hidden_words,
    )
    columns: str | None = setting(
        None,
        "Kinds of columns by name, as in year=categorical,mass=real. Kinds are real, count, binary, categorical.",
        COLUMN_KINDS,
        default_text="inferred",
    )
    interval: tuple[float, float] | None = setting(
        None, "Interval of real values, such as 0,1.", INTERVAL, default_text="0,1 or the range of the data"
    )
    binarize: float | None = setting(
        None, "Threshold of binarization. Larger values become 1, all others 0.", FINITE, default_text="off"
    )
    dtype: str = setting(
        "float32", "Data type of the parameters: {choices}.", choices=("float32", "float64"), on_shell=False
    )

    def __post_init__(self) -> None:
        for declared in fields(MachineOptions):
            check_value(declared.name, getattr(self, declared.name), option_of(declared))
        has_interval = self.visible == "auto" or UNIT_TYPES[self.visible].bounds is not None
        if self.interval is not None and not (has_interval and self.binarize is None):
            raise SettingsError(
                f"interval requires real-valued data, but visible is {self.visible!r} and binarize is {self.binarize}"
            )
        if self.columns is not None and (self.visible, self.binarize, self.interval) != ("auto", None, None):
            raise SettingsError("columns cannot be combined with visible, binarize or interval")
        if self.binarize is not None and self.visible not in ("auto", "binary"):
            raise SettingsError(f"binarize makes values 0 or 1, but visible is {self.visible!r}")

    @property
    def column_kinds(self) -> dict[str, str]:
        """Mapping from column names to kinds."""
        return dict(pairs_from_text(self.columns or ""))
