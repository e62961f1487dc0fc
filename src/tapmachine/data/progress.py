"""Progress of long computations, which commands show on terminals."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LEAST_SECONDS = 0.2  # minimum time between updates

_sink: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("progress", default=None)


def report(activity: str, done: int, total: int) -> None:
    """Report progress, such as `report("solving", 20, 100)`. This has no effect if progress is not shown."""
    sink = _sink.get()
    if sink is not None:
        sink(activity, done, total)


@contextmanager
def shown(on_terminal: bool) -> Iterator[None]:
    """Show the progress of the computations within the block on a terminal, in a line that is overwritten."""
    last, stream = time.monotonic(), sys.stderr

    def write(activity: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > LEAST_SECONDS:
            last = time.monotonic()
            print(f"{activity} {done}/{total}", end="\x1b[K\r", file=stream, flush=True)

    token = _sink.set(write if on_terminal else None)
    try:
        yield
    finally:
        _sink.reset(token)
        if on_terminal:
            print(end="\x1b[K", file=stream, flush=True)
