"""Machines on disk: what is saved is what is loaded, and nothing else is."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from machine_cases import UNITS, machine_of
from safetensors.torch import save as to_bytes

from tapmachine import Binary, Custom, clamp, load, pairwise, rbm, save, solve
from tapmachine.data.errors import FileError
from tapmachine.machine import files


def saved(tmp_path, machine, **options):
    path = tmp_path / "machine.safetensors"
    save(machine, path, **options)
    return path


@pytest.mark.parametrize("kinds", [*([kind, "Binary"] for kind in UNITS), ["Spin"], ["Binary", "Categorical", "Spin"]])
def test_what_is_saved_is_loaded(kinds, tmp_path):
    machine = machine_of(kinds, [5, 4, 3][: len(kinds)], seed=1)
    if any(isinstance(units, Custom) for units in machine.layers):
        with pytest.raises(FileError, match="layer 0: Custom units cannot be saved"):
            save(machine, tmp_path / "machine")
        return
    again = load(saved(tmp_path, machine))
    assert [type(units) for units in again.layers] == [type(units) for units in machine.layers]
    assert str(again) == str(machine)
    for name, value in machine.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert value.dtype == again.state_dict()[name].dtype, name


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_process_on_another_device_finds_the_same_free_energies(device, dtype, tmp_path):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    machine = machine_of(["TruncatedGaussian", "Binary"], [12, 6], seed=2, scale=0.3).float()
    path = saved(tmp_path, machine, data={"name": "noise"})
    x = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
    here = solve(machine, x, tol=1e-12).free_energy
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import sys, numpy, torch; from tapmachine import load, solve;"
        "device, dtype = sys.argv[3], getattr(torch, sys.argv[4]);"
        "machine = load(sys.argv[1], device=device, dtype=dtype);"
        "x = torch.from_numpy(numpy.load(sys.argv[2])).to(device, dtype);"
        "print(*solve(machine, x, tol=1e-12).free_energy.tolist())"
    )
    command = [sys.executable, "-c", code, path, tmp_path / "x.npy", device, dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # F is summed from 90 terms of order 1 or less, in float32
    np.testing.assert_allclose(np.array(done.stdout.split(), float), here.numpy(), rtol=0, atol=1e-5)
    assert files.data_description(path) == {"name": "noise"}


def test_a_half_written_file_is_never_seen(tmp_path, monkeypatch):
    path = saved(tmp_path, rbm(Binary(3), Binary(2)))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(rbm(Binary(30), Binary(20)), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_any_changed_byte_is_noticed(tmp_path):
    path = saved(tmp_path, rbm(Binary(4), Binary(3)))
    content = path.read_bytes()
    reference = load(path).state_dict()
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1 + position % 255
        path.write_bytes(changed)
        try:
            found = load(path).state_dict()
        except FileError:
            continue
        assert all(torch.equal(value, found[name]) for name, value in reference.items()), position


class Evil:
    def __reduce__(self):
        return os.system, ("echo executed",)


def header(layers, tensors, **more):
    text = json.dumps({"format": 1, "kind": "machine", "dtype": "float32", "layers": layers, **more}, sort_keys=True)
    return to_bytes(tensors, {files.KEY: json.dumps({"description": text, "sha256": files._digest(tensors, text)})})


W = {"weights.0": torch.zeros(3, 2)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not a machine", "cannot be read"),
        (b"\xff" * 100, "cannot be read"),
        (pickle.dumps(Evil()), "cannot be read"),
        (to_bytes(W), "not a tapmachine file"),
        (to_bytes(W, {files.KEY: "{}"}), "is damaged"),
        (to_bytes(W, {files.KEY: "["}), "is damaged"),
        (header([], W), "not a valid machine file"),
        (header([{"type": "os.system", "n": 3}], W), "unknown unit type 'os.system'"),
        (header([{"type": "Binary", "n": 10**15}] * 2, W), "but no parameter of this size"),
        (header([{"type": "Binary", "n": 3}, {"type": "Binary"}], W), "not a valid machine file"),
        (header([], W, format=2), "the file has format 2; expected format 1"),
        (header([], W, kind="training"), "contains a 'training'; expected a 'machine'"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path, capfd):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "executed" not in capfd.readouterr().out


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileError, match="file not found"):
        load(tmp_path / "nothing")
    with pytest.raises(FileError, match="not found in this directory"):
        load(tmp_path)
    with pytest.raises(FileError, match="cannot be saved"):
        save(clamp(rbm(Binary(3), Binary(2)), torch.zeros(3)), tmp_path / "clamped")
    with pytest.raises(FileError, match="JSON"):
        save(pairwise(Binary(3)), tmp_path / "machine", data={"function": print})


def test_a_machine_with_one_column(tmp_path):
    machine = rbm(Binary(1), Binary(3))
    machine.weights[0].data = torch.ones(3, 1).T  # a view whose last dimension has another stride
    save(machine, tmp_path / "m.safetensors")
    assert torch.equal(load(tmp_path / "m.safetensors").weights[0], machine.weights[0])
