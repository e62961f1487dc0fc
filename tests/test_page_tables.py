"""The report page of tables: columns of data and samples, associations, classes and hidden units by name; labels."""

import math
import re

import numpy as np
import pytest
import torch
from run_cases import command
from scipy.stats import contingency, f_oneway
from test_page import SIZES, Elements, browser, page_of, visit  # noqa: F401

from tapmachine import Binary, Categorical, Gaussian, Mixed, gibbs, rbm
from tapmachine.apps.report import write_report
from tapmachine.apps.report.columns import Column, association, bin_edges, summarize
from tapmachine.apps.report.labels import make_labels
from tapmachine.apps.report.table_results import classes_of, hidden_responses
from tapmachine.apps.report.tree import shown_branches
from tapmachine.data.errors import DataError
from tapmachine.exact import mixture_of
from tapmachine.landscape import SolutionTree
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

HARM = '"><script>window.harmed=1</script>'


def table(path, n=150):
    """A table with columns of all kinds, one of which has a gap every seventh row and one a name that means harm."""
    draws = np.random.default_rng(0)
    kind = draws.integers(0, 2, n)
    length = np.where(kind, 40, 50) + draws.normal(size=n)
    eggs = draws.poisson(np.where(kind, 1, 6))
    lines = [f'length_mm,eggs,island,"{HARM.replace(chr(34), chr(34) * 2)}"']
    for row in range(n):
        island = ("Dream", "Biscoe", HARM.replace('"', ""))[draws.integers(0, 3) if row % 3 else 2 * kind[row]]
        lines.append(
            f"{'' if row % 7 == 0 else round(length[row], 2)},{eggs[row]},{island},{'yes' if kind[row] else 'no'}"
        )
    path.write_text("\n".join(lines) + "\n")
    return kind, length


@pytest.fixture(scope="module")
def run_of_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table(folder / "birds.csv")
    run_training(Settings(str(folder / "birds.csv"), validation=0.2), folder / "run")
    return folder / "run"


@pytest.mark.long
def test_the_page_of_a_table(run_of_table):
    done = write_report(Session(run_of_table))
    found, text = done.runs[0], done.path.read_text()
    table_found = found.table
    assert table_found is not None
    by_name = {own.column.name: own for own in table_found.summaries}
    assert list(by_name) == ["length_mm", "eggs", "island", HARM]
    assert {name: own.column.kind for name, own in by_name.items()} == {
        "length_mm": "real", "eggs": "count", "island": "categorical", HARM: "binary",
    }  # fmt: skip
    assert by_name["length_mm"].missing == pytest.approx(18 / 120)  # every seventh of 120 training rows
    assert by_name["eggs"].missing == 0
    assert all(own.difference < 0.35 for own in table_found.summaries)  # samples are like the data
    hidden = {own.column: own for own in table_found.imputation}
    assert list(hidden) == list(by_name)
    assert hidden["length_mm"].error < 0.6 * hidden["length_mm"].baseline  # the other columns tell the kind
    assert hidden[HARM].error < hidden[HARM].baseline
    assert math.isnan(hidden["island"].coverage)
    surprised = table_found.unusual.rows
    assert [nats for _, nats, _ in surprised] == sorted((nats for _, nats, _ in surprised), reverse=True)
    scores = -found.likelihoods.scores["train"].values
    assert surprised[0][:2] == (int(scores.argmax()), pytest.approx(float(scores.max())))
    assert sum(own.probability for own in table_found.classes) == pytest.approx(1)
    assert found.likelihoods.partition.method == "exact"
    assert found.likelihoods.gain()[0] > 1  # the columns depend on each other
    headings = ("Classes", "Imputation", "Unusual cells", "Associations")
    for expected in (*headings, "length_mm", "15.0% missing", "held-out data", "independent units"):
        assert expected in text
    assert "<h2>TAP solutions" not in text  # there is no mean field to look at
    elements = Elements(text)
    assert HARM in elements.text
    assert not any(tag == "script" and not attributes for tag, attributes in elements.tags[:-3])
    assert len(text) < 500_000


@pytest.mark.parametrize(("size", "colors"), [("desk", "light"), ("phone", "dark")])
def test_tables_on_every_screen(size, colors, visit, run_of_table):  # noqa: F811
    path = write_report(Session(run_of_table)).path
    page = visit(path, viewport=SIZES[size], color_scheme=colors)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    assert page.evaluate("window.harmed") is None
    assert page.locator(".small-pictures .figure").count() == 4
    assert page.locator(".classes tbody tr").count() >= 2
    with page.expect_download() as download:
        page.locator('.figure[data-name="column_eggs"] .save button').first.dispatch_event("click")
    assert download.value.suggested_filename == "column_eggs.svg"


def test_a_page_about_a_real_valued_table(tmp_path, quick_tables):
    draws = np.random.default_rng(1)
    first = draws.normal(size=120)
    rows = np.stack([first, -first + 0.1 * draws.normal(size=120), draws.normal(size=120)], 1)
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="left,right,alone", comments="")
    run_training(Settings(str(tmp_path / "x.csv")), tmp_path / "run")
    code, out, errors = command("report", str(tmp_path / "run"))
    assert (code, out.strip()) == (0, str(tmp_path / "run" / "report.html")), errors
    text = (tmp_path / "run" / "report.html").read_text()
    pairs = write_report(Session(tmp_path / "run")).runs[0].table
    assert pairs.paired == ["left", "right", "alone"]
    for matrix in pairs.associations:
        assert matrix[0, 1] < -0.9
        assert abs(matrix[0, 2]) < 0.3
    assert "No values are missing" in text


# ----- numbers against a second method


def test_associations_against_scipy():
    draws = np.random.default_rng(2)
    code, number = draws.integers(0, 3, 200), draws.normal(size=200)
    number += code
    other = np.where(draws.random(200) < 0.5, code, draws.integers(0, 4, 200))
    groups = [number[code == own] for own in range(3)]
    f = f_oneway(*groups).statistic
    ratio = math.sqrt(2 * f / (2 * f + 197))  # η² = df₁F/(df₁F + df₂)
    assert association(number, code.astype(float), True, False) == pytest.approx(ratio)
    assert association(code.astype(float), number, False, True) == pytest.approx(ratio)
    counts = contingency.crosstab(code, other).count
    expected = contingency.association(counts, method="cramer")
    assert association(code.astype(float), other.astype(float), False, False) == pytest.approx(expected)
    assert association(number, number**2, True, True) == pytest.approx(np.corrcoef(number, number**2)[0, 1])
    assert math.isnan(association(np.ones(5), np.arange(5.0), True, True))


def test_summaries_of_columns():
    column = Column("x", "count", slice(0, 1))
    found = summarize(column, np.array([0.0, 1, 1, 2, np.nan]), np.array([0.0, 0, 1, 1]))
    assert found.missing == pytest.approx(0.2)
    assert found.edges == [-0.5, 0.5, 1.5, 2.5]
    assert found.fractions == [[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]]
    assert found.difference == pytest.approx(0.25)
    rounded = summarize(Column("r", "real", slice(0, 1)), np.array([1.0, 2, 5]), np.array([0.8, 2.4, 4.7]))
    assert rounded.edges == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]  # integers are drawn as integers
    assert rounded.difference == pytest.approx(0)
    names = Column("c", "categorical", slice(0, 3), ("a", "b", "c"))
    rows = torch.tensor([[0.0, 1, 0], [0, 0, 1], [np.nan] * 3])
    np.testing.assert_equal(names.values(rows), [1, 2, np.nan])
    assert summarize(names, names.values(rows), np.array([1.0, 1, 1, 2])).fractions == [[0, 0.5, 0.5], [0, 0.75, 0.25]]
    spins = Column("s", "binary", slice(0, 1), ("−1", "1"))
    assert spins.values(torch.tensor([[-1.0], [1.0]])).tolist() == [0, 1]
    assert len(bin_edges(np.array([3.0, 3.0]), np.array([]), False)) == 2


def test_hidden_units_respond_to_their_columns():
    """A unit that is coupled to one column is associated with it, and not with the other."""
    weights = torch.tensor([[8.0, 0.0], [0.0, 0.0]])
    machine = rbm(Binary(2), Binary(2, field=torch.tensor([-4.0, 0.0])), weights)
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]).repeat(10, 1)
    both = [Column(name, "binary", slice(i, i + 1), ("0", "1")) for i, name in enumerate("ab")]
    names, table_of = hidden_responses(machine, x, both)
    assert names == ["unit 0"]  # the other one is always the same
    np.testing.assert_allclose(table_of, [[1, 0]], atol=1e-6)


def test_classes_against_samples():
    """The shares and means of classes are those of samples that are drawn class by class."""
    weights = torch.tensor([[2.0, -1.0], [0.0, 0.0], [3.0, -3.0]])
    machine = rbm(Mixed([Gaussian(2), Binary(1)]), Categorical(1, 2), weights)
    both = [Column("a", "real", slice(0, 1), shift=10.0, scale=2.0), Column("c", "binary", slice(2, 3), ("no", "yes"))]
    samples = mixture_of(machine).sample(20_000, torch.Generator().manual_seed(1))
    found = classes_of(machine, both, samples.float())
    x, hidden = gibbs(machine, torch.zeros(20_000, 3), 30, torch.Generator().manual_seed(0))
    for own, kind in zip(found, hidden[:, 0].mean(0).argsort(descending=True).tolist(), strict=True):
        inside = hidden[:, 0, kind] > 0.5
        assert own.probability == pytest.approx(float(inside.double().mean()), abs=0.02)
        assert float(own.values[0].replace("−", "-")) == pytest.approx(10 + 2 * float(x[inside, 0].mean()), abs=0.2)
        word, share = own.values[1].removesuffix("%").split()
        assert float(share) == pytest.approx(100 * float((x[inside, 2] == (word == "yes")).double().mean()), abs=3)


# ----- labels


@pytest.mark.parametrize("suffix", ["npy", "csv", "header"])
def test_labels_from_files(suffix, run_of_table, tmp_path):
    names = np.array(["Adelie" if row % 3 else "Gentoo" for row in range(150)])
    path = tmp_path / f"labels.{'npy' if suffix == 'npy' else 'csv'}"
    if suffix == "npy":
        np.save(path, names)
    else:
        path.write_text("\n".join((["species"] if suffix == "header" else []) + names.tolist()))
    from tapmachine.apps.report.labels import labels_of

    data = Session(run_of_table).data(gaps=True)
    with pytest.warns(UserWarning, match="missing values are dropped"):
        complete = Session(run_of_table).data()
    for own in (data, complete):
        found = labels_of(own, str(path))
        rows = torch.arange(len(own.train)) if own.index is None else own.index
        assert [found.names[i] for i in found.index.tolist()] == names[rows.numpy()].tolist()
    assert labels_of(data, None) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("few.csv", "1\n2\n", "few.csv: contains 2 labels; expected 150 labels, one per row of the data"),
        ("two.csv", "1,2\n" * 150, "line 1 has 2 columns; expected one label per line"),
        ("none.csv", None, "none.csv: file not found"),
        ("labels.xlsx", "", "expected a .npy or .csv file"),
        ("bad.npy", "no array", "bad.npy: labels cannot be read"),
    ],
)
def test_labels_that_do_not_fit(name, content, message, run_of_table, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    code, _, errors = command("report", str(run_of_table), "--labels", str(tmp_path / name), "--quiet")
    assert code == 2
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_labels_and_their_purity():
    labels = make_labels([3, 1, 1, 3, 2])
    assert labels.names == ("1", "2", "3")
    assert labels.purity(torch.tensor([0, 1, 1, 0, 1])) == pytest.approx(4 / 5)
    assert labels.purity(torch.tensor([-1, 1, 1, 0, 1])) == pytest.approx(3 / 4)
    many = make_labels(np.repeat(np.arange(30), np.arange(30) + 1))
    assert many.names[-1] == "other"
    assert len(many.names) == len(set(many.colors)) == 21
    assert int((many.index == 20).sum()) == sum(range(1, 11))  # the ten rarest


# ----- the tree


def test_branches_hold_the_starts_of_their_leaves():
    """Of the tree s0, (s1, (s2, s3)), of which s3 has too few starts to be drawn."""
    parents = [torch.tensor([0, 0]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2, 2])]
    basin = torch.tensor([0] * 500 + [1] * 300 + [2] * 200 + [3] + [-1])
    counts = torch.bincount(basin[basin >= 0])
    means = [torch.arange(float(n)).unsqueeze(1) for n in (1, 2, 3, 4)]
    tree = SolutionTree([1, 2, 5, 9], parents, counts, basin, [0] * 4, means)
    nodes = shown_branches(tree)
    assert [(node.parent, node.epoch, node.leaf, int(node.starts.sum())) for node in nodes] == [
        (-1, 1, -1, 1000), (0, 9, 0, 500), (0, 2, -1, 500), (2, 9, 1, 300), (2, 9, 2, 200),
    ]  # fmt: skip
    assert [float(node.means) for node in nodes] == [0, 0, 1, 1, 2]


def test_the_report_says_what_it_needs(tmp_path):
    code, _, errors = command("report")
    assert code == 2
    assert "missing RUNS" in errors
    code, _, errors = command("report", str(tmp_path))
    assert code == 2
    assert re.search("not a run directory", errors)


def test_errors_of_labels_are_data_errors(tmp_path):
    from tapmachine.apps.report.labels import read_labels

    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(DataError, match="shape"):
        read_labels(tmp_path / "x.npy", 3)
