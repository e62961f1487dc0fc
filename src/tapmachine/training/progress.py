"""Output of training records to a file, a terminal, or a notebook."""

import json
import math
import sys
import time
from contextlib import suppress
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from tapmachine.data.errors import TrainingWarning, warn
from tapmachine.training.monitor import Record

LEAST_SECONDS = 0.1  # minimum time between updates


class Reporter:
    """Write training records to a file and show progress.

    Records are appended to the file as lines of JSON. Progress is shown as a bar on a terminal or in a notebook, and
    elsewhere as one line per measured epoch.

    Args:
        log: Path to the file, or None.
        progress: Whether to show progress (default: only on a terminal or in a notebook).
        epochs: Total number of epochs.
        finished: Number of epochs that are already completed (default: 0).
    """

    def __init__(self, log: str | Path | None, progress: bool | None, epochs: int, finished: int = 0) -> None:
        self.log = None if log is None else Path(log)
        is_notebook, is_terminal = in_notebook(), bool(sys.stderr and sys.stderr.isatty())
        self.shows = is_notebook or is_terminal if progress is None else progress
        self.bar: NotebookBar | _TerminalBar | None = None
        if self.shows and (is_notebook or is_terminal):
            self.bar = NotebookBar(epochs, finished) if is_notebook else _TerminalBar(epochs, finished)
        self.epochs = epochs

    def __enter__(self) -> "Reporter":
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.touch()  # fail now, not after an epoch, if the file cannot be written
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, record: Record) -> None:
        if self.log is not None:
            self._write(self.log, record)
        summary = "  ".join(in_words(record))
        was_measured = "reconstruction_error" in record or record["epoch"] == self.epochs
        if self.bar is not None:
            self.bar.advance(summary if was_measured else "")
        elif self.shows and was_measured:
            with suppress(OSError):  # a closed terminal must not end the training
                print(
                    summary if record.get("is_fitted") else f"epoch {record['epoch']:.0f}/{self.epochs}  {summary}",
                    flush=True,
                )

    @staticmethod
    def _write(log: Path, record: Record) -> None:
        known = {name: None if _is_not_finite(value) else value for name, value in record.items()}  # NaN is not JSON
        try:
            with log.open("a") as file:
                file.write(json.dumps(known) + "\n")
        except OSError as error:  # a full disk must not end the training
            warn(f"the training record could not be written: {error}", TrainingWarning)


def in_words(record: Record) -> list[str]:
    """Summarize a record as a list of short phrases, such as the log-likelihood with its method.

    Measurements by TAP are included if training maximizes TAP's log-likelihood.

    Example:
        >>> from tapmachine.training.progress import in_words
        >>> measured = {"log_likelihood": -17.83, "log_likelihood_error": 0.04, "log_likelihood_method": "annealed"}
        >>> in_words(measured | {"validation_log_likelihood": -18.4, "tap_log_likelihood": -16.1, "n_unique": 9.0})
        ['log-likelihood -17.83 ± 0.04 (annealed)', 'held-out -18.4']
    """
    words = [f"layer {record['layer']:.0f} alone"] if record.get("layer") else []
    known = {name: value for name, value in record.items() if value is not None}
    if "log_likelihood" in known:
        method, error = known.get("log_likelihood_method"), known.get("log_likelihood_error")
        by = f" ({method})" if method else ""
        words.append(f"log-likelihood {known['log_likelihood']:.4g}{f' ± {error:.2g}' if error else ''}{by}")
    if "validation_log_likelihood" in known:
        words.append(f"held-out {known['validation_log_likelihood']:.4g}")
    by_tap = "by_tap" in known
    if by_tap and "tap_log_likelihood" in known:
        words.append(f"TAP {known['tap_log_likelihood']:.4g}")
    if by_tap and "n_unique" in known:
        words.append(f"{known['n_unique']:.0f} solution{'' if known['n_unique'] == 1 else 's'}")
    if "kept_epoch" in known:
        words.append(f"epoch {known['kept_epoch']:.0f} kept")
    if "seconds" in known and not known.get("is_fitted"):
        words.append(f"{known['seconds']:.2g} s")
    return words


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class _TerminalBar:
    """Progress bar on a terminal, with the interface of `NotebookBar`."""

    def __init__(self, epochs: int, finished: int) -> None:
        from rich.console import Console  # imported here to keep the import of the package fast
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()]
        self.progress = Progress(*columns, TextColumn("{task.fields[summary]}"), console=Console(file=sys.__stderr__))
        self.task = self.progress.add_task("epoch", total=epochs, completed=finished, summary="")
        self.start, self.stop = self.progress.start, self.progress.stop

    def advance(self, summary: str) -> None:
        self.progress.update(self.task, advance=1)
        if summary:
            self.progress.update(self.task, summary=summary)


def in_notebook() -> bool:
    """Return whether the code runs in a notebook kernel, such as Jupyter."""
    module = sys.modules.get("IPython")  # always imported in a notebook kernel
    return hasattr(None if module is None else module.get_ipython(), "kernel")


class NotebookBar:
    """Progress bar for notebooks, which requires only IPython. The final state stays visible.

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
