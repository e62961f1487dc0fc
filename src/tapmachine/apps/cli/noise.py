"""Noise options of `tapmachine denoise`, and checks that they match the visible units."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from tapmachine.runs.registry import CHANNELS, ChannelWord
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
        suitable = [word for word, entry in CHANNELS.items() if _suits(entry, units)]
        name = self.name or suitable[0]
        if name not in suitable:
            others = " or ".join(f"--channel {word}" for word in suitable)
            raise ValueError(f"--channel {name} does not support {_kind(units)} visible units; use {others}")
        self._check_parameters(name, units)
        channel: Channel = resolve_name(CHANNELS[name].home)(self.given[CHANNELS[name].parameter])
        return name, channel

    def _check_parameters(self, name: str, units: "Units") -> None:
        entry, n_states = CHANNELS[name], units.support.n_states
        for option, value in self.given.items():
            if value is not None and entry.parameter != option:
                raise ValueError(f"--{option} is not available for --channel {name}; use --{entry.parameter}")
        value = self.given[entry.parameter]
        if value is None and entry.required:
            raise ValueError(f"missing --{entry.parameter}: --channel {name} requires a value")
        low, high = entry.limits
        if entry.needs == "states" and n_states is not None:  # at higher values, a wrong state is the most probable
            high = 1 - 1 / n_states
        if value is not None and not low <= value <= high:
            raise ValueError(f"--{entry.parameter} is {value:g}; expected a value between {low:g} and {high:g}")

    def in_words(self, name: str, channel: "Channel", units: "Units") -> str:
        """Describe the channel, the value of its parameter, and the reason for the choice."""
        parameter = CHANNELS[name].parameter
        value = getattr(channel, parameter)
        estimated = ", estimated" if self.given[parameter] is None else ""
        with_value = "" if value is None else f" ({parameter}={value:.4g}{estimated})"
        why = "" if self.name else f", the default for {_kind(units)} visible units"
        return f"denoised with channel {name}{with_value}{why}"


def _suits(entry: ChannelWord, units: "Units") -> bool:
    """Return whether a channel supports the visible units."""
    has_states, are_numbers = units.support.n_states is not None, not units.is_categorical
    return {
        "anything": True,
        "states": has_states,
        "numbers": are_numbers,
        "bounded numbers": are_numbers and (has_states or units.is_bounded()),
    }[entry.needs]


def _kind(units: "Units") -> str:
    """Return the name of the unit type, as in --visible."""
    return word_for(units) or type(units).__name__
