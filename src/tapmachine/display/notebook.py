"""Progress bar for notebooks, which requires only IPython."""

import sys
import time
from html import escape
from importlib import import_module
from typing import Any

LEAST_SECONDS = 0.1  # minimum time between updates


def in_notebook() -> bool:
    """Return whether the code runs in a notebook kernel, such as Jupyter."""
    module = sys.modules.get("IPython")  # always imported in a notebook kernel
    return hasattr(None if module is None else module.get_ipython(), "kernel")


class NotebookBar:
    """Progress bar that is updated in place. The final state stays visible.

    Args:
        total: Total number of epochs.
        finished: Number of epochs that were completed before (default: 0).
    """

    def __init__(self, total: int, finished: int = 0) -> None:
        self.total, self.finished, self.first, self.summary = total, finished, finished, ""
        self.begin, self.shown = time.monotonic(), 0.0
        self.handle: Any = None

    def start(self) -> None:
        """Display the progress bar."""
        self.handle = import_module("IPython.display").display(self, display_id=True)  # a kernel has IPython

    def advance(self, summary: str) -> None:
        """Advance the bar by one epoch and show the summary of that epoch."""
        self.finished, self.summary = self.finished + 1, summary or self.summary
        if time.monotonic() - self.shown > LEAST_SECONDS:
            self.stop()

    def stop(self) -> None:
        """Display the current state of the progress bar."""
        self.shown = time.monotonic()
        if self.handle is not None:
            self.handle.update(self)

    def __repr__(self) -> str:
        return f"epoch {self.finished}/{self.total}  {self.summary}"

    def _repr_html_(self) -> str:
        done, seconds = self.finished - self.first, time.monotonic() - self.begin
        remaining = seconds / done * (self.total - self.finished) if done else 0.0
        status = (
            f"epoch {self.finished}/{self.total}, {seconds:.0f} s{f', {remaining:.0f} s left' if remaining else ''}"
        )
        return (
            f'<div><progress value="{self.finished}" max="{max(1, self.total)}" style="width:16em"></progress> '
            f'<span style="font-variant-numeric:tabular-nums">{status}</span><br>{escape(self.summary)}</div>'
        )
