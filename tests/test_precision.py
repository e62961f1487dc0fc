"""Formats of matrix products on a GPU, which have to be asked for."""

import subprocess
import sys

import pytest
import torch
from machine_cases import machine_of
from run_cases import command

from tapmachine import TAP, TAPObjective, fit, solve
from tapmachine.accelerator.precision import MATMUL_PRECISIONS, rounds_factors
from tapmachine.accelerator.torch_versions import multiplies_rounded_factors
from tapmachine.data.errors import SettingsError
from tapmachine.runs.settings import Settings
from tapmachine.solver.schemes import couplings
from tapmachine.training import Monitor, matmul_precision
from tapmachine.training.free_energies import sweep_from


def pretend_there_is_a_gpu(monkeypatch, multiplies_rounded_factors=True):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "tapmachine.accelerator.precision.multiplies_rounded_factors", lambda: multiplies_rounded_factors
    )


@pytest.mark.parametrize("format", MATMUL_PRECISIONS)
@pytest.mark.parametrize("before", ["highest", "high"])
def test_what_was_set_before_is_set_again(before, format, monkeypatch):
    pretend_there_is_a_gpu(monkeypatch)
    first = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        with matmul_precision(format):
            assert torch.get_float32_matmul_precision() == ("highest" if format == "float32" else "high")
            assert rounds_factors() == (format == "bfloat16")
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(ZeroDivisionError), matmul_precision(format):
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == before
        assert not rounds_factors()
    finally:
        torch.set_float32_matmul_precision(first)


BY_DEVICE = """
import torch
from tapmachine import Binary, rbm, solve
from tapmachine.training import matmul_precision
torch.backends.cuda.matmul.fp32_precision = "tf32"
solve(rbm(Binary(4), Binary(2)))
torch.cuda.is_available = lambda: True
for format, wanted in (("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "tf32")):
    with matmul_precision(format):
        assert torch.backends.cuda.matmul.fp32_precision == wanted
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has only one setting")
def test_a_setting_for_each_device_is_respected():
    """Torch lets one set it by device, too, and then refuses to tell it as one."""
    result = subprocess.run([sys.executable, "-c", BY_DEVICE], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_older_versions_of_torch_use_tf32_for_bfloat16_and_warn(monkeypatch):
    pretend_there_is_a_gpu(monkeypatch, multiplies_rounded_factors=False)
    warns = pytest.warns(UserWarning, match=r"bfloat16 products require torch 2\.8 or newer, found .*; using tf32")
    with warns as warned, matmul_precision("bfloat16"):
        assert torch.get_float32_matmul_precision() == "high"
        assert not rounds_factors()
    assert warned[0].filename == __file__


def test_nothing_is_set_on_a_cpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32"):
        assert torch.get_float32_matmul_precision() == before


def test_sweeps_multiply_rounded_factors(monkeypatch):
    """On a CPU, by the way that a GPU takes, whose products alone give float32 of two bfloat16."""
    given = []

    def bmm(a, b, out_dtype=None):
        given.append((a.dtype, b.dtype, out_dtype))
        return (a.double() @ b.double()).to(a.dtype if out_dtype is None else out_dtype)

    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(couplings, "_in_one_launch", lambda weights: True)
    machine = machine_of(["Binary", "Binary"], [20, 8], seed=3, scale=0.3).float()
    x = (torch.rand(5, 20, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    plain = sweep_from(machine, x, TAP(), 4)[0]
    assert set(given) == {(torch.float32, torch.float32, None)}
    given.clear()
    with matmul_precision("bfloat16"):
        rounded = sweep_from(machine, x, TAP(), 4)[0]
        assert set(given) == {(torch.bfloat16, torch.bfloat16, torch.float32)}
        given.clear()
        TAP().free_energy(machine, *sweep_from(machine.double(), x.double(), TAP(), 4))
        assert set(given) == {(torch.float64, torch.float64, None)}
    difference = (rounded[0].mean - plain[0].mean).abs().max()
    assert 1e-6 < float(difference) < 1e-2


def test_solutions_are_those_of_the_machine_whatever_the_format(monkeypatch):
    seen = []

    def sweeps(*_):
        seen.append((torch.get_float32_matmul_precision(), rounds_factors()))
        raise ZeroDivisionError

    monkeypatch.setattr(TAP, "incoming", sweeps)
    pretend_there_is_a_gpu(monkeypatch)
    machine = machine_of(["Binary", "Binary"], [20, 8], seed=3, scale=0.3).float()
    with matmul_precision("bfloat16"), pytest.raises(ZeroDivisionError):
        solve(machine)
    assert seen == [("highest", False)]


def test_f_that_is_differentiated_is_never_rounded(monkeypatch):
    """Not even where the weights are not trained."""
    monkeypatch.setattr(couplings, "_in_one_launch", lambda weights: True)
    machine = machine_of(["Binary", "Binary"], [20, 8], seed=3, scale=0.3).float().requires_grad_(False)
    with matmul_precision("bfloat16"):
        kinds = [
            couplings.Couplings(machine, differentiable).senders[1][0].both.dtype for differentiable in (True, False)
        ]
    assert kinds == [torch.float32, torch.bfloat16]


def test_formats_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="matmul_precision is 'half'; expected one of"), matmul_precision("half"):
        pass
    with pytest.raises(SettingsError, match="matmul_precision is 'half'"):
        Settings("digits", matmul_precision="half")
    with pytest.raises(SettingsError, match="matmul_precision is 'tf32', which requires dtype float32"):
        Settings("digits", matmul_precision="tf32", dtype="float64")


def test_the_command_line_says_that_a_cpu_has_no_such_formats(tmp_path):
    code, _, errors = command(
        "train", "digits", "--matmul-precision", "tf32", "--device", "cpu", "--out", tmp_path / "run"
    )
    assert code == 2
    assert "matmul_precision tf32 requires a GPU" in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("format", "error"), [("tf32", 1e-2), ("bfloat16", 0.1)])
def test_formats_change_what_they_should_and_no_more(format, error):
    if format == "bfloat16" and not multiplies_rounded_factors():
        pytest.skip("needs torch 2.8")
    machine = machine_of(["Binary", "Binary"], [200, 64], seed=3, scale=0.3).float()
    x = (torch.rand(300, 200, generator=torch.Generator().manual_seed(0)) < 0.3).float().cuda()
    machine.cuda()
    plain = solve(machine, x)
    with matmul_precision(format):
        torch.testing.assert_close(solve(machine, x).free_energy, plain.free_energy, rtol=0, atol=0)
    losses = []
    for own in ("float32", format):
        new = machine_of(["Binary", "Binary"], [200, 64], seed=4, scale=0.01).float().cuda()
        with matmul_precision(own):
            history = fit(new, x, epochs=3, objective=TAPObjective(), monitor=Monitor(0), compile=False)
        assert all(p.dtype == torch.float32 for p in new.parameters())
        losses.append(history["loss"][-1])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=error)
