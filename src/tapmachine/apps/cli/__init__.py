"""The command-line interface. Slow modules are imported inside the commands, so that `--help` is fast."""

import sys
from importlib import import_module
from typing import Any

from tapmachine.apps.cli import common

COMMANDS = {  # the module of each command, in the order of --help
    "train": "train",
    "info": "runs",
    "evaluate": "runs",
    "sample": "sample",
    "denoise": "posterior",
    "impute": "posterior",
    "predict": "predict",
    "recover": "posterior",
    "score": "score",
    "landscape": "landscape",
    "report": "report",
    "convert": "interchange",
    "doctor": "doctor",
}


def main() -> None:
    """Run the command line. If a command is requested, only its module is imported."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    _load(name) if name in COMMANDS else _load(*COMMANDS)
    common.main()


def _load(*names: str) -> None:
    for name in names:
        import_module(f"{__name__}.{COMMANDS[name]}")
    order = [*COMMANDS]
    common.app.registered_commands.sort(key=lambda command: order.index(getattr(command.callback, "__name__", "")))


def __getattr__(name: str) -> Any:
    """Return the application `app` with all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load(*COMMANDS)
    return common.app
