"""Machines of other programs."""

import numpy as np
import pytest
import torch
from machine_cases import machine_of
from sklearn.datasets import load_digits
from sklearn.neural_network import BernoulliRBM

from tapmachine import Binary, Spin, load, rbm, save
from tapmachine.apps.cli import app
from tapmachine.data.errors import FileError
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import from_bernoulli_rbm, read_rbms, write_rbms

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("kind", ["Binary", "Categorical"])
def test_there_and_back(kind, tmp_path):
    machine = machine_of([kind, "Binary"], [5, 3], seed=2).float()
    write_rbms(machine, tmp_path / "rbm.h5")
    write_rbms(machine, tmp_path / "rbm.h5", update=12)
    again = read_rbms(tmp_path / "rbm.h5", update=1)
    for mine, theirs in zip(machine.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    with pytest.raises(FileError, match="already contains update 12"):
        write_rbms(machine, tmp_path / "rbm.h5", update=12)
    with pytest.raises(FileError, match="contains no update 3; available: 1, 12"):
        read_rbms(tmp_path / "rbm.h5", update=3)


@pytest.mark.parametrize("kind", ["Binary", "Categorical"])
def test_rbms_itself_reads_and_writes_them(kind, tmp_path):
    """The free energies that it finds are ours, but for the constant of the visible units' normalized priors."""
    io = pytest.importorskip("rbms.io")
    map_model = pytest.importorskip("rbms.map_model").map_model
    machine = machine_of([kind, "Binary"], [5, 3], seed=2).float()
    path = tmp_path / "rbm.h5"
    write_rbms(machine, path)
    theirs = io.load_params(str(path), 1, torch.device("cpu"), torch.float32, map_model)
    states = torch.randint(0, 2, (20, 5), generator=torch.Generator().manual_seed(0))
    mine = -log_weight(machine, machine.layers[0].check_states(states if kind == "Categorical" else states.float()))
    others = theirs.compute_energy_visibles(states.float() if kind == "Binary" else states)
    torch.testing.assert_close(mine - mine[0], (others - others[0]).double(), rtol=0, atol=1e-4)
    chains = {"visible": states.float()}
    io.save_model(str(tmp_path / "theirs.h5"), theirs, chains, 7, 0.0)
    again = read_rbms(tmp_path / "theirs.h5")
    torch.testing.assert_close(again.weights[0], machine.weights[0])


def test_bernoulli_rbm():
    x = (load_digits().data[:200] > 8).astype(float)
    model = BernoulliRBM(n_components=7, n_iter=2, random_state=0).fit(x)
    machine = from_bernoulli_rbm(model)
    assert machine.dtype == torch.float64
    mine = -log_weight(machine, torch.from_numpy(x)).numpy()
    theirs = model._free_energy(x)
    np.testing.assert_allclose(mine - mine[0], theirs - theirs[0], atol=1e-9)
    np.testing.assert_allclose(
        machine.conditional(1, [torch.from_numpy(x), None]).mean.detach(), model.transform(x), atol=1e-12
    )
    with pytest.raises(ValueError, match="is not fitted"):
        from_bernoulli_rbm(BernoulliRBM())


def test_what_is_no_such_file(tmp_path):
    path = tmp_path / "x.h5"
    with pytest.raises(FileError, match="file not found"):
        read_rbms(path)
    path.write_text("hello")
    with pytest.raises(FileError, match="cannot be read as an HDF5 file"):
        read_rbms(path)
    path.unlink()
    with h5py.File(path, "w") as file:
        file["something"] = 1
    with pytest.raises(FileError, match="contains no update_N"):
        read_rbms(path)
    with h5py.File(path, "a") as file:
        group = file.create_group("update_1/params")
        group["weight_matrix"], group["vbias"] = np.zeros((3, 2)), np.zeros(4)
    with pytest.raises(FileError, match="update 1 has no hbias"):
        read_rbms(path)
    with h5py.File(path, "a") as file:
        file["update_1/params/hbias"] = np.zeros(2)
    with pytest.raises(FileError, match=r"weight_matrix \(3, 2\), vbias \(4,\)"):
        read_rbms(path)
    with pytest.raises(FileError, match="the machine is 3 Spin – 2 Binary"):
        write_rbms(rbm(Spin(3), Binary(2)), path)


def test_from_the_command_line(tmp_path):
    from typer.testing import CliRunner

    machine = machine_of(["Binary", "Binary"], [5, 3], seed=2).float()
    save(machine, tmp_path / "a.safetensors")
    for source, target in (("a.safetensors", "b.h5"), ("b.h5", "c.safetensors")):
        result = CliRunner().invoke(app, ["convert", str(tmp_path / source), str(tmp_path / target)])
        assert result.exit_code == 0, result.output
        assert "5 Binary – 3 Binary" in result.stdout
    assert torch.equal(load(tmp_path / "c.safetensors").weights[0], machine.weights[0])
