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


def test_rbms_continues_the_training(tmp_path):
    """With the chains, settings and random states of the file, as `rbms train --restore` does."""
    command = pytest.importorskip("rbms.scripts.train_rbm")
    RBMDataset = pytest.importorskip("rbms.dataset.dataset_class").RBMDataset
    machine = machine_of(["Binary", "Binary"], [5, 3], seed=2).float()
    path = tmp_path / "rbm.h5"
    write_rbms(machine, path, chains=torch.eye(5))
    found = pytest.importorskip("rbms.io").load_model(str(path), 1, torch.device("cpu"), torch.float32, restore=True)
    torch.testing.assert_close(found[0].weight_matrix, machine.weights[0].detach())
    assert torch.equal(found[1]["visible"], torch.eye(5))
    rows, names = np.eye(5, dtype=np.float32).repeat(4, 0), np.arange(20)
    data = RBMDataset(rows, np.zeros(20), np.ones((20, 1), np.float32), names, "rows", True, "cpu")
    words = ["--dataset", "rows", "--restore", "--filename", str(path), "--num_updates", "3", "--device", "cpu"]
    settings = command.match_args_dtype(vars(command.create_parser().parse_args([*words, "--batch_size", "10"])))
    command.train(
        data, data, "BBRBM", args=settings, dtype=torch.float32, checkpoints=np.array([3]), map_model=command.map_model
    )
    assert read_rbms(path, update=3).sizes == (5, 3)


def test_the_file_has_all_that_rbms_reads(tmp_path):
    """The names and shapes that `rbms.io.load_model` of rbms 0.5.0 asks for, with rbms installed or not."""
    machine = machine_of(["Categorical", "Binary"], [5, 3], seed=2).float()
    write_rbms(machine, tmp_path / "rbm.h5")
    write_rbms(machine, tmp_path / "rbm.h5", update=2)
    with h5py.File(tmp_path / "rbm.h5") as file:
        assert file["model_type"].asstr()[()] == "PBRBM"
        chains = file["parallel_chains"][()]
        assert (chains.shape, chains.dtype) == ((100, 5), np.float32)
        assert set(np.unique(chains)) == {0.0, 1.0, 2.0}
        settings = {name: value[()] for name, value in file["hyperparameters"].items()}
        assert settings.keys() >= {"batch_size", "gibbs_steps", "learning_rate", "L1", "L2", "seed", "train_size"}
        for update in ("update_1", "update_2"):
            assert file[f"{update}/params/weight_matrix"].shape == (5, 3, 3)
            assert file[f"{update}/torch_rng_state"].dtype == np.uint8
            assert file[f"{update}/numpy_rng_arg0"].asstr()[()] == "MT19937"
            assert "checkpoint" in file[f"{update}/flags"]


@pytest.mark.parametrize("model", ["IIRBM", "BGRBM", "PBRBM"])
def test_other_units_are_refused(model, tmp_path):
    """Files of ±1 or Gaussian units have parameters of the same names and shapes."""
    path = tmp_path / "rbm.h5"
    write_rbms(machine_of(["Binary", "Binary"], [5, 3], seed=2).float(), path)
    with h5py.File(path, "a") as file:
        del file["model_type"]
        file["model_type"] = model
    with pytest.raises(FileError, match=rf"rbm.h5: the model is '{model}'; expected BBRBM \(binary units\) or PBRBM"):
        read_rbms(path)


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
