"""Objects show themselves in notebooks."""

import json
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tapmachine import (
    Binary,
    BinarySymmetric,
    Gaussian,
    TAPObjective,
    compare_likelihoods,
    denoise,
    find_solutions,
    fit,
    pairwise,
    rbm,
)
from tapmachine.landscape import track_landscape
from tapmachine.likelihood import Annealing
from tapmachine.posterior import Posterior
from tapmachine.training import History
from tapmachine.training import progress as notebook
from tapmachine.training.progress import Reporter


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A kernel of the interpreter that runs the tests, whatever kernels are installed."""
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("jupyter") / "kernels" / "python3"
    folder.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": arguments, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder.parents[1]))
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
        patch.setenv("IPYTHONDIR", str(folder.parents[1] / "ipython"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
        yield


@pytest.mark.long
def test_the_bar_in_a_kernel(kernels, tmp_path):
    """One output, updated in place, which ends at the last epoch with what was measured; nothing if not wanted."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    code = "import torch; from tapmachine import Binary, fit, rbm; machine, x = rbm(Binary(4), Binary(2)), torch.eye(4)"
    cells = [code, "_ = fit(machine, x, epochs=3)", "_ = fit(machine, x, epochs=3, progress=False)"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [cell.outputs for cell in book.cells]
    assert [len(outputs) for outputs in shown] == [0, 1, 0]
    text = shown[1][0]["data"]["text/html"]
    assert 'value="3" max="3"' in text
    assert "log-likelihood" in text


# ----- what objects show


@pytest.fixture(scope="module")
def trained():
    x = (torch.rand(60, 16, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    machine = rbm(Binary(16), Binary(6))
    return machine, x, fit(machine, x, epochs=2, batch_size=20, objective=TAPObjective(), progress=False)


def parsed(thing):
    """The HTML of an object, which must be well-formed, small, without scripts and without links elsewhere."""
    begin = time.perf_counter()
    text = thing._repr_html_()
    assert time.perf_counter() - begin < 1
    assert len(text) < 50_000
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    return ElementTree.fromstring(
        text.replace("<br>", "<br/>").replace("&nbsp;", " ").replace('%"></img>', '%"/>')
    ), text


def test_a_machine(trained):
    _, text = parsed(trained[0])
    for expected in (
        "Boltzmann machine",
        "Binary",
        "<td>16</td>",
        "<td>6</td>",
        "118 parameters",
        "float32 on cpu",
        "<svg",
    ):
        assert expected in text
    assert "Pairwise" in parsed(pairwise(Gaussian(3)))[1]


def test_a_history(trained):
    _, text = parsed(trained[2])
    assert "History of 2 epochs" in text
    assert "nats per row" in text
    assert "loss" in parsed(History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4}]))[1]
    assert "History of 0 epochs" in parsed(History())[1]


def test_a_landscape(trained):
    machine, x, _ = trained
    landscape = find_solutions(machine, x)
    text = landscape._repr_html_()
    assert f"{len(landscape)} solution" in text
    assert "data:image/png" in text  # 4×4 pixels
    assert "data:image/png" not in find_solutions(rbm(Binary(5), Binary(2)), torch.eye(5))._repr_html_()
    track = track_landscape({1: machine, 2: machine}, x)
    assert "Landscape over the epochs" in parsed(track)[1]


@pytest.mark.filterwarnings("ignore::tapmachine.data.errors.LikelihoodWarning")
def test_a_table_of_likelihoods(trained):
    machine, x, _ = trained
    table = compare_likelihoods(machine, x, annealing=Annealing(50))
    root, _ = parsed(table)
    rows = root.findall(".//tbody/tr")
    assert [row[0].text for row in rows] == [row.estimator for row in table.rows]
    assert [row[1].text for row in rows] == [f"{row.train:.3f}".replace("-", "−") for row in table.rows]


def test_a_posterior(trained):
    machine, x, _ = trained
    posterior = denoise(machine, x[:3], BinarySymmetric(0.1))
    assert isinstance(posterior, Posterior)
    assert posterior._repr_html_().count("data:image/png") == 2
    narrow = denoise(rbm(Binary(5), Binary(2)), torch.eye(5), BinarySymmetric(0.1))
    root, _ = parsed(narrow)
    cell = root.findall(".//tbody/tr")[0][1].text
    mean, deviation = float(narrow.mean[0, 0]), float(narrow.variance[0, 0]) ** 0.5
    assert cell == f"{mean:.3g} ± {deviation:.2g}"


def test_elsewhere_there_is_no_bar(capsys):
    assert not notebook.in_notebook()
    with Reporter(None, None, 2) as report:
        report({"epoch": 1, "loss": 0.0})
    assert capsys.readouterr() == ("", "")
