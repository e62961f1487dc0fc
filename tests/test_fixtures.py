"""Files of earlier versions are read for ever, and mean what they meant; fixtures/README says how to add some."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tapmachine import exact_log_likelihood, load
from tapmachine.apps.cli.doctor import check_run
from tapmachine.data.sources import read
from tapmachine.machine.files import FORMAT, data_description
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import read_machine
from tapmachine.runs.training import run_training

FIXTURES = Path(__file__).parent / "fixtures"
KNOWN = {path.parent.name: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/known.json"))}
MACHINES = [(version, name) for version, known in KNOWN.items() for name in known if name != "run"]


def test_they_are_all_there_and_small():
    assert {f"format-{number}" for number in range(1, FORMAT + 1)} <= KNOWN.keys()
    assert len(MACHINES) >= 8
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < 50_000


@pytest.mark.parametrize(("version", "name"), MACHINES)
def test_machines_of_earlier_versions(version, name):
    known, path = KNOWN[version][name], FIXTURES / version / f"{name}.safetensors"
    machine = load(path)
    assert machine.summary() == known["summary"]
    assert data_description(path) == {"name": name}
    rows = torch.tensor(known["rows"])
    found = exact_log_likelihood(machine, rows).values
    torch.testing.assert_close(found, torch.tensor(known["log_likelihood"], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("version", KNOWN)
def test_runs_of_earlier_versions(version, tmp_path, monkeypatch):
    """They are whole, hold what they held, and go on."""
    known, folder = KNOWN[version]["run"], tmp_path / version
    shutil.copytree(FIXTURES / version, folder)
    monkeypatch.chdir(folder)  # where their data are
    rows = torch.tensor(read("rows.csv").rows[:3]).float()

    def log_likelihood(machine):
        return exact_log_likelihood(machine, rows).values.tolist()

    run = RunFolder("run")
    assert not [finding.words for finding in check_run(run.path) if finding.verdict == "problem"]
    assert run.last_epoch() == known["epochs"]
    for machine in (read_machine(run)[0], read_machine(run, known["epochs"])[0]):
        assert machine.weights[0].flatten().tolist() == pytest.approx(known["weights"], abs=1e-9)
        assert log_likelihood(machine) == pytest.approx(known["log_likelihood"], abs=1e-6)
    done = run_training(run.settings(), run.path)
    assert done.resumed_at == known["epochs"]
    assert [record["epoch"] for record in done.records] == [1, 2, 3, 4]
    assert log_likelihood(done.machine) == pytest.approx(known["after_4_epochs"], abs=1e-3)
