"""Noise options of `tapmachine denoise`, and checks that they match the visible units."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from tapmachine.runs.registry import CHANNELS
from tapmachine.units.registry import word_for

if TYPE_CHECKING:
    from tapmachine.posterior.channels import Channel
    from tapmachine.units import Units


@dataclass(frozen=True)
class Noise:
    """Noise options of the command line.

    Attributes:
        name: Name of the noise channel, or None for the default channel of the visible units.
        given: Values of the channel parameters by name, with None for parameters that are not set.
    """

    name: str | None
    given: dict[str, float | None]

    def channel(self, units: "Units") -> tuple[str, "Channel"]:
        """Return the name of the channel and the channel. Raises ValueError if it does not support the units."""
        suitable = [word for word, entry in CHANNELS.items() if resolve_name(entry.home).supports(units)]
        name = self.name or suitable[0]
        if name not in suitable:
            others = " or ".join(f"--channel {word}" for word in suitable)
            raise ValueError(f"--channel {name} does not support {_kind(units)} visible units; use {others}")
        entry = CHANNELS[name]
        values = {option: value for option, value in self.given.items() if value is not None}
        for option in values:
            if option not in entry.parameters:
                others = " or ".join(f"--{parameter}" for parameter in entry.parameters)
                raise ValueError(f"--{option} is not available for --channel {name}; use {others}")
        missing = next((parameter for parameter in entry.parameters if parameter not in values), None)
        if missing and entry.required:
            raise ValueError(f"missing --{missing}: --channel {name} requires a value")
        try:
            channel: Channel = resolve_name(entry.home)(**values)
            channel.check(units)
        except ValueError as error:  # of a parameter, after the name of the class
            raise ValueError(f"--{str(error).partition(': ')[2]}") from None
        return name, channel

    def in_words(self, name: str, channel: "Channel", units: "Units") -> str:
        """Describe the channel, the value of its parameter, and the reason for the choice."""
        values = {parameter: getattr(channel, parameter) for parameter in CHANNELS[name].parameters}
        with_values = "".join(
            f" ({parameter}={value:.4g}{', estimated' if self.given[parameter] is None else ''})"
            for parameter, value in values.items()
            if value is not None
        )
        why = "" if self.name else f", the default for {_kind(units)} visible units"
        return f"denoised with channel {name}{with_values}{why}"


def _kind(units: "Units") -> str:
    """Return the name of the unit type, as in --visible."""
    return word_for(units) or type(units).__name__
