"""The command-line interface. Slow modules are imported inside the commands, so that `--help` is fast."""

from tapmachine.apps.cli import (
    compare,
    demo,
    doctor,
    interchange,
    landscape,
    posterior,
    recover,
    report,
    runs,
    sample,
    score,
    tables,
    train,
)
from tapmachine.apps.cli.common import app, main

ORDER = (  # order of the commands in --help
    "train", "info", "evaluate", "sample", "denoise", "impute", "predict", "recover", "score", "compare",
    "landscape", "report", "convert", "doctor", "demo",
)  # fmt: skip
app.registered_commands.sort(key=lambda command: ORDER.index(command.callback.__name__ if command.callback else ""))

__all__ = [
    "app", "compare", "demo", "doctor", "interchange", "landscape", "main", "posterior", "recover", "report",
    "runs", "sample", "score", "tables", "train",
]  # fmt: skip
