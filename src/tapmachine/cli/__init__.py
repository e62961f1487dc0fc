"""The command line. What takes time to import is imported by the command that needs it, so that --help is quick."""

from tapmachine.cli import demo, interchange, landscape, runs, train
from tapmachine.cli.common import app, main

ORDER = ("train", "info", "evaluate", "sample", "landscape", "report", "convert", "demo")  # in --help
app.registered_commands.sort(key=lambda command: ORDER.index(command.callback.__name__ if command.callback else ""))

__all__ = ["app", "demo", "interchange", "landscape", "main", "runs", "train"]
