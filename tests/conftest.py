"""What tests of several files start from, and the ways to run all of them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cases import bars

import tapmachine

# Processes that tests start import the same package as the tests do, whatever folder they start in.
_paths = [str(Path(tapmachine.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)

# As on processors and in programs that take numbers below the smallest normal one for 0.
if os.environ.get("TAPMACHINE_TEST_FLUSH_DENORMALS") == "1" and not torch.set_flush_denormal(True):
    raise pytest.UsageError("TAPMACHINE_TEST_FLUSH_DENORMALS: this processor cannot flush denormal numbers to zero")


@pytest.fixture
def data(tmp_path):
    """The path of a file of rows."""
    path = tmp_path / "bars.npy"
    np.save(path, bars())
    return str(path)
