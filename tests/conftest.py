"""What tests of several files start from, and which of them are quick."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cases import bars

import tapmachine
from tapmachine.tables import slabs

# Processes that tests start import the same package as the tests do, whatever folder they start in.
_paths = [str(Path(tapmachine.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)

# As on processors and in programs that take numbers below the smallest normal one for 0.
if os.environ.get("TAPMACHINE_TEST_FLUSH_DENORMALS") == "1" and not torch.set_flush_denormal(True):
    raise pytest.UsageError("TAPMACHINE_TEST_FLUSH_DENORMALS: this processor cannot flush denormal numbers to zero")


def pytest_configure(config):
    """Hides GPUs from tests that are not about them: they hold for a CPU, on which the same numbers come every time."""
    if "gpu" not in (config.option.markexpr or "").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Marks as quick the first case of every test, and every docstring, but for those that are marked."""
    seen = set()
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        test = (item.path, name)
        if test in seen or any(item.get_closest_marker(mark) for mark in ("long", "slow", "gpu", "torture")):
            continue
        seen.add(test)
        item.add_marker(pytest.mark.quick)


@pytest.fixture
def quick_tables(monkeypatch):
    """Starts of real-valued tables are fitted less well, where a test is about something else."""
    monkeypatch.setattr(slabs, "MOST_STEPS", 80)


@pytest.fixture
def data(tmp_path):
    """The path of a file of rows."""
    path = tmp_path / "bars.npy"
    np.save(path, bars())
    return str(path)
