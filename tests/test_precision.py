"""Solutions and likelihoods have full precision, even if matrix products of training may be less precise."""

import subprocess
import sys

import pytest
import torch
from machine_cases import machine_of

from tapmachine import TAP, TAPObjective, fit, solve
from tapmachine.accelerator.precision import full_precision
from tapmachine.training import Monitor


@pytest.mark.parametrize("before", ["highest", "high"])
def test_what_was_set_before_is_set_again(before, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    first = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(ZeroDivisionError), full_precision():
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(first)


BY_DEVICE = """
import torch
from tapmachine import Binary, rbm, solve
from tapmachine.accelerator.precision import full_precision
torch.backends.cuda.matmul.fp32_precision = "tf32"
solve(rbm(Binary(4), Binary(2)))
torch.cuda.is_available = lambda: True
with full_precision():
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
assert torch.backends.cuda.matmul.fp32_precision == "tf32"
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has only one setting")
def test_a_setting_for_each_device_is_respected():
    """Torch lets one set it by device, too, and then refuses to tell it as one."""
    result = subprocess.run([sys.executable, "-c", BY_DEVICE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_solutions_are_those_of_the_machine_whatever_the_format(monkeypatch):
    seen = []

    def sweeps(*_):
        seen.append(torch.get_float32_matmul_precision())
        raise ZeroDivisionError

    monkeypatch.setattr(TAP, "incoming", sweeps)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    machine = machine_of(["Binary", "Binary"], [20, 8], seed=3, scale=0.3).float()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ZeroDivisionError):
            solve(machine)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_format_changes_training_and_nothing_else():
    machine = machine_of(["Binary", "Binary"], [200, 64], seed=3, scale=0.3).float().cuda()
    x = (torch.rand(300, 200, generator=torch.Generator().manual_seed(0)) < 0.3).float().cuda()
    solved, losses = [], []
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            solved.append(solve(machine, x).free_energy)
            new = machine_of(["Binary", "Binary"], [200, 64], seed=4, scale=0.01).float().cuda()
            history = fit(new, x, epochs=3, objective=TAPObjective(), monitor=Monitor(0), compile=False)
            losses.append(history["loss"][-1])
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(solved[0], solved[1], rtol=0, atol=0)
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
