"""Rows that small runs are trained on, and the command line that does it."""

import contextlib
import io
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tapmachine.apps.cli import main

PATIENCE = 900  # seconds for what takes a few: a loaded machine may be many times slower


def bars(rows=300, seed=0):
    """One of four bars in each row of 16 pixels."""
    which = np.random.default_rng(seed).integers(0, 4, rows)
    return np.kron(np.eye(4), np.ones(4))[which].astype(np.float32)


def command(*arguments):
    """Exit code, output and errors of the command line, in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tapmachine", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
            main()
    return end.value.code, out.getvalue(), errors.getvalue()


def wait_until(condition, process):
    """Waits for a condition; a process that ends first, or takes a quarter of an hour, is a failure."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        assert process.poll() is None or condition(), f"the process ended before, with {process.returncode}"
        time.sleep(0.02)


STRIKE = """
import os, signal, sys
from tapmachine.apps.cli import main
from tapmachine.training.batches import Batches
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes would ignore it
kind, last, taken, take = int(sys.argv[1]), int(sys.argv[2]), 0, Batches.take
def struck(self, place):
    global taken
    taken += 1
    assert taken <= last, "it goes on after the signal"
    if taken == last:
        os.kill(os.getpid(), kind)
    return take(self, place)
Batches.take = struck
sys.argv[:3] = ["tapmachine"]
main()
"""


def struck(kind, batch, *arguments):
    """The command line in a process of its own, which gets a signal at its so-many-th batch and takes no other one.

    A signal from outside would come too late on one machine and before the first batch on another.
    """
    words = [sys.executable, "-c", STRIKE, str(int(kind)), str(batch), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    if kind == signal.SIGKILL:
        assert done.returncode == -signal.SIGKILL, done.stderr
    return done
