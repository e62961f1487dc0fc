"""Warnings name the line of the user's code, whatever lies between it and the place that warns; progress is shown."""

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
from tapmachine import RBM, Binary, BinarySymmetric, TruncatedGaussian, ais_log_partition, denoise, fit, rbm, solve
from tapmachine.data import progress
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


def test_solving_and_annealing_report_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LEAST_SECONDS", 0.0)
    machine, starts = rbm(Binary(6, field=1.0), Binary(3)), torch.rand(5, 6)
    with progress.shown(on_terminal=True):
        solve(machine, starts, batch_size=2)
        ais_log_partition(machine, 20, n_runs=10)
    shown = capsys.readouterr().err
    solved = [int(done) for done in re.findall(r"solving (\d+)/5", shown)]
    assert solved == sorted(solved)
    assert solved[-1] == 5
    assert "annealing 19/20" in shown
    with progress.shown(on_terminal=False):
        solve(machine, starts)
    solve(machine, starts)
    assert capsys.readouterr().err == ""
