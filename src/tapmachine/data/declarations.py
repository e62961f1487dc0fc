"""Declaration of settings as dataclass fields with help text, choices and checks, without importing torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from tapmachine.data.errors import SettingsError

Declared = TypeVar("Declared")

KINDS_OF_COLUMNS = ("real", "count", "binary", "categorical")  # in the order of encoded rows
KINDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
LISTS = {int: "a list of integers", float: "a list of numbers"}


class Check(NamedTuple):
    """Condition on a value, with a description of the expected value."""

    holds: Callable[[Any], bool]
    expected: str


class Option(NamedTuple):
    """Declaration of a setting, apart from its name, type and default.

    Attributes:
        help: Help text.
        check: Condition on values other than None.
        choices: Allowed values.
        default_text: Description of a default that is not constant.
        flags: Names of the command-line flags, if they differ from the name of the setting.
        on_shell: Whether the setting is an option of `tapmachine train`. All settings can be set in a settings file.
    """

    help: str
    check: Check | None = None
    choices: Callable[[], Sequence[str]] | None = None
    default_text: str | None = None
    flags: str | None = None
    on_shell: bool = True

    def help_text(self) -> str:
        """Return the help text with the choices filled in."""
        return self.help if self.choices is None else self.help.format(choices=", ".join(self.choices()))


def setting(
    default: Any,
    help: str,
    check: Check | None = None,
    *,
    choices: Callable[[], Sequence[str]] | Sequence[str] | None = None,
    default_text: str | None = None,
    flags: str | None = None,
    on_shell: bool = True,
) -> Any:
    """Create a field of `Settings` with an `Option`. A setting with the default MISSING is required."""
    words = choices if choices is None or callable(choices) else lambda: choices
    return field(default=default, metadata={"option": Option(help, check, words, default_text, flags, on_shell)})


def option_of(declared: "Field[Any]") -> Option:
    """Return the declaration of a setting."""
    option: Option = declared.metadata["option"]
    return option


def at_least(least: float) -> Check:
    """Return a check that a value is finite and not less than `least`."""
    return Check(lambda value: least <= value < math.inf, f"{least:g} or more")


POSITIVE = Check(lambda value: 0 < value < math.inf, "a finite positive number")
FINITE = Check(math.isfinite, "a finite number")
SIZES = Check(lambda sizes: bool(sizes) and all(n >= 1 for n in sizes), "positive integers")
INTERVAL = Check(lambda ends: len(ends) == 2 and ends[0] < ends[1], "two increasing numbers, such as 0 and 1")
COLUMN_KINDS = Check(
    lambda text: all(kind in KINDS_OF_COLUMNS for _, kind in pairs_from_text(text)),
    f"NAME=KIND, separated by commas, with kinds {', '.join(KINDS_OF_COLUMNS)}",
)
FRACTION_KEPT = Check(lambda value: 0 < value <= 1, "a number above 0 and at most 1")
BELOW_ONE = Check(lambda value: 0 <= value < 1, "a number in [0, 1)")
FILE_OR_FRACTION = Check(
    lambda value: not isinstance(value, float) or 0 < value < 1, "a file, or a fraction between 0 and 1"
)


def pairs_from_text(text: str) -> list[tuple[str, str]]:
    """Parse name=word pairs separated by commas. A missing word becomes an empty string."""
    pairs = (part.rpartition("=") if "=" in part else (part, "", "") for part in text.split(",") if part.strip())
    return [(name.strip(), word.strip()) for name, _, word in pairs]


def check_value(name: str, value: Any, option: Option) -> None:
    """Raise a SettingsError if a value does not match its declaration."""
    if option.choices is not None and value not in option.choices():
        raise SettingsError(f"{name} is {value!r}; expected one of {', '.join(option.choices())}")
    if option.check is not None and value is not None and not option.check.holds(value):
        raise SettingsError(f"{name} is {value!r}; expected {option.check.expected}")


# ----- types of JSON values and of command-line arguments


def kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or a tuple with a single type."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def item_kind(hint: Any) -> Any:
    """Return the item type of a tuple setting, or None for other settings."""
    return next((get_args(kind)[0] for kind in kinds(hint) if get_origin(kind) is tuple), None)


def holds_floats(hint: Any) -> bool:
    """Return whether the values of a setting are floats or tuples of floats."""
    return float in kinds(hint) or item_kind(hint) is float


def from_json(name: str, value: Any, hint: Any) -> Any:
    """Convert a value from JSON, in which tuples are lists.

    Raises:
        SettingsError: If the value has the wrong type.
    """
    item = item_kind(hint)
    if item is not None and isinstance(value, list) and all(_is_a(item, each) for each in value):
        return tuple(value)
    if any(_is_a(kind, value) for kind in kinds(hint)):
        return value
    words = [LISTS[item]] if item is not None else []
    words += [KINDS[kind] for kind in kinds(hint) if kind in KINDS]
    raise SettingsError(f"{name} is {value!r}; expected {' or '.join(words)}")


def _is_a(kind: Any, value: Any) -> bool:
    """Return whether a JSON value has a given type. The values true and false are not numbers."""
    return type(value) is kind or (kind is float and type(value) is int)


def from_text(name: str, text: Any, hint: Any) -> Any:
    """Parse a value from the command line, where the items of a tuple are separated by commas."""
    item = item_kind(hint)
    if item is not None and text is not None:
        try:
            return tuple(item(part) for part in text.split(","))
        except ValueError:
            numbers = "two numbers" if (float, float) in map(get_args, kinds(hint)) else "numbers"
            example = "one or more integers, such as 500,200" if item is int else f"{numbers}, such as 0,1"
            raise SettingsError(f"{name} is {text!r}; expected {example}") from None
    if {str, float} <= {*kinds(hint)} and text is not None:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def default_in_words(declared: "Field[Any]") -> str:
    """Return the default of a setting as a help text."""
    text, value = option_of(declared).default_text, declared.default
    if text is not None or value is MISSING:
        return text or ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "off" if value is False else f"{value:g}" if isinstance(value, float) else str(value)


def with_attributes(declared: type[Declared]) -> type[Declared]:
    """Class decorator that lists the options of a dataclass with their help texts and defaults in its docstring."""
    lines = ["Attributes:"]
    for each in fields(declared):  # type: ignore[arg-type]
        default = default_in_words(each)
        lines.append(f"    {each.name}: {option_of(each).help_text()}" + (f" Default: {default}." if default else ""))
    described, example, rest = (declared.__doc__ or "").partition("    Example:\n")
    listed = "\n".join(f"    {line}" for line in lines)
    declared.__doc__ = f"{described.rstrip()}\n\n{listed}\n" + (f"\n{example}{rest}" if example else "")
    return declared
