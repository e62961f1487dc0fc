"""Warnings name the line of the user's code, whatever lies between it and the place that warns."""

import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import tapmachine
from tapmachine import RBM, Binary, BinarySymmetric, TruncatedGaussian, denoise, fit, rbm
from tapmachine.data.errors import TapmachineWarning
from tapmachine.posterior import PosteriorOptions

RAMP = np.linspace(0, 1, 40).reshape(10, 4)


def through_a_pipeline():
    make_pipeline(FunctionTransformer(), RBM(2, epochs=1, random_state=0).fit(RAMP)).transform(3 * RAMP)


def in_the_training_loop():
    fit(rbm(TruncatedGaussian(4, 0.0, 1e4), Binary(2)), 1e4 * torch.rand(20, 4), epochs=1)


def through_decorators():
    once = PosteriorOptions(max_sweeps=1, tol=1e-300)
    denoise(rbm(Binary(4), Binary(2)), torch.ones(3, 4), BinarySymmetric(0.1), options=once)


@pytest.mark.parametrize("use", [through_a_pipeline, in_the_training_loop, through_decorators])
def test_a_warning_names_the_line_that_called_the_package(use):
    source, first = inspect.getsourcelines(use)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    assert any(issubclass(warning.category, TapmachineWarning) for warning in caught)
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, first + len(source) - 1)}


def test_the_package_warns_by_one_function():
    for path in Path(tapmachine.__file__).parent.rglob("*.py"):
        assert path.name == "errors.py" or not re.search(r"warnings\.warn\(|stacklevel", path.read_text()), path
