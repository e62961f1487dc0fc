"""The command line. What takes time to import is imported by the command that needs it, so that --help is quick."""

from tapmachine.cli import demo, interchange, runs, train
from tapmachine.cli.common import app, main

__all__ = ["app", "demo", "interchange", "main", "runs", "train"]
