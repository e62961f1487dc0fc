"""Marks of tests that need something."""

import numpy as np
import pytest

from tapmachine.accelerator.compilation import has_tested_compiler

needs_compiler = pytest.mark.skipif(not has_tested_compiler(), reason="compiles, which needs torch 2.11")

# Warnings about machines that are not the point of a test, each in the tests that need it.
idle_layers = pytest.mark.filterwarnings("ignore:the means of hidden layer")
drifting_tap = pytest.mark.filterwarnings(r"ignore:(epoch \d+. )?TAP('s log-likelihood is| and \w+ disagree)")

DENORMALS = bool(np.float64(1e-310) * np.ones(1) > 0)  # whether such numbers are there, or 0 (see conftest.py)
