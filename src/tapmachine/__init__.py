"""Boltzmann machines trained, scored and inspected deterministically, by the TAP mean field."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapmachine.api import *

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Public names are looked up in `api` when they are first asked for, so that the command line starts quickly."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'tapmachine' has no attribute {name!r}")
    try:
        value = getattr(import_module("tapmachine.api"), name)
    except AttributeError:
        raise AttributeError(f"module 'tapmachine' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*import_module("tapmachine.api").__all__, "__version__"])
