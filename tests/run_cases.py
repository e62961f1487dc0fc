"""Rows that small runs are trained on, and the command line that does it."""

import contextlib
import io
import sys

import numpy as np
import pytest

from tapmachine.cli import main


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
