"""The page about a run, in a real browser: it loads, answers to pointer and keyboard, and asks nobody for anything."""

import itertools
import json
import re
import shutil
import time
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from name_cases import NAMES
from PIL import Image
from run_cases import PATIENCE

from tapmachine import __version__
from tapmachine.apps.report import Options, results, write_report, writing
from tapmachine.apps.report.figures import Figure
from tapmachine.display.images import LEVELS, gray_png
from tapmachine.landscape import track_landscape
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

# Small machines with strong couplings: TAP and the exact value may differ, and a page says so.
pytestmark = pytest.mark.filterwarnings("ignore::tapmachine.data.errors.LikelihoodWarning")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DETAILS, PINNED = '[data-part="details"]', '[data-part="pinned"] .card'
CIRCLES = '[data-part="solutions"] circle'
SIZES = {"desk": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 800}}


def classes_and_patterns(rows=300, seed=0):
    generator = np.random.default_rng(seed)
    kinds = generator.integers(0, 2, (6, 36))
    which = generator.integers(0, 6, rows)
    return which, np.abs(kinds[which] - (generator.random((rows, 36)) < 0.02)).astype(np.float32)


def patterns(rows=300, seed=0):
    return classes_and_patterns(rows, seed)[1]


def data_of(kind):
    if kind == "images":
        return patterns().reshape(-1, 6, 6), "auto"
    if kind == "bars":
        return patterns()[:, :30], "auto"
    if kind == "categories":
        return np.tile(patterns().astype(int), 4) + np.tile(patterns(seed=1).astype(int), 4), "categorical"  # wide
    return patterns()[:, :30] + 0.1 * np.random.default_rng(1).normal(size=(300, 30)), "gaussian"


def labels_in(folder, kind):
    """Labels of the images only: other pages do without."""
    if kind != "images":
        return None
    np.save(folder / "labels.npy", np.array([f"kind {number}" for number in classes_and_patterns()[0]]))
    return str(folder / "labels.npy")


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """Pages on runs of several kinds of data, made once each."""
    made = {}

    def make(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            x, visible = data_of(kind)
            np.save(folder / "x.npy", x)
            options = {"hidden": (12,), "epochs": 12, "batch_size": 10, "measure_every": 12, "keep_every": 3}
            options |= {"visible": visible, "hidden_units": "binary"}  # with which TAP has solutions to show
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=r"epoch \d+: TAP's log-likelihood is")
                run_training(Settings(str(folder / "x.npy"), **options), folder / "run")
                warnings.filterwarnings("ignore", message=r"TAP and \w+ disagree")
                write_report(Session(folder / "run"), options=Options(n_starts=100, labels=labels_in(folder, kind)))
            made[kind] = folder / "run"
        return made[kind]

    return make


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, page_of):
    """Opens the page of a kind of data, or a file; afterwards, nothing may have gone wrong and been asked for."""
    contexts, complaints, requests = [], [], []

    def go(kind, **options):
        context = browser.new_context(**{"viewport": SIZES["desk"], "reduced_motion": "reduce"} | options)
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        path = page_of(kind) / "report.html" if isinstance(kind, str) else kind
        page.goto(f"file://{path}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url[:60] for url in requests if not url.startswith(("file:", "data:"))] == []


def gray(canvas):
    """The values of a canvas, (height, width)."""
    size = canvas.evaluate("c => [c.height, c.width, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
    return np.array(size[2:]).reshape(size[0], size[1], 4)[..., 0]


def eventually(page, condition):
    """Waits for what a browser does when it gets to it: pictures are decoded, and time passes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        page.wait_for_timeout(50)


@pytest.mark.long
def test_pointing_at_a_solution_shows_it(visit, page_of):
    page = visit("images")
    machines = Session(page_of("images")).machines
    found = track_landscape(machines, machines.session.training_data().train, n_starts=100)
    last = found.snapshots[-1]
    circles = page.locator(CIRCLES)
    assert circles.count() == last.n_solutions
    order = last.counts.argsort(descending=True, stable=True).tolist()
    for place in (0, len(order) - 1):
        page.locator(f'{CIRCLES}[data-place="{place}"]').hover(force=True)
        text = page.locator(DETAILS).inner_text()
        number = order[place]
        probability = 100 * float((-last.free_energy).softmax(0)[number])
        assert abs(float(re.search(rf"solution {number}: probability ([\d.]+)%", text).group(1)) - probability) < 0.5
        assert f"F = {float(last.free_energy[number]):.2f} nats" in text
        assert f"{int(last.counts[number])} of {len(found.starts)} starts" in text
        large, expected = page.locator(DETAILS + " canvas.large"), last.means[0][number].view(6, 6).numpy()
        eventually(page, lambda: np.abs(gray(large) / 255 - expected).max() < 0.6 / LEVELS)  # noqa: B023
        examples = page.locator(DETAILS + " .examples canvas")
        rows = (last.basin == number).nonzero().squeeze(-1)[:4]
        assert examples.count() == len(rows)
        first = found.starts[rows[0]].view(6, 6).numpy()
        eventually(page, lambda: np.abs(gray(examples.first) / 255 - first).max() < 0.01)  # noqa: B023


@pytest.mark.long
def test_a_real_pointer_and_clicks_that_pin(visit):
    page = visit("images")
    smallest = page.locator(CIRCLES).last  # drawn on top
    smallest.hover()
    assert "solution" in page.locator(DETAILS).inner_text()
    smallest.click()
    assert page.locator(PINNED).count() == 1
    assert page.locator(CIRCLES + ".pinned").count() == 1
    page.locator('[data-part="epoch"]').fill("0")
    page.locator(CIRCLES).last.click()
    assert page.locator(PINNED).count() == 2  # of two epochs, side by side
    page.locator('[data-part="pinned"] button').first.click()
    assert page.locator(PINNED).count() == 1
    page.locator(CIRCLES).last.click()
    assert page.locator(PINNED).count() == 0


def test_the_slider_goes_through_the_epochs(visit, page_of):
    page = visit("images")
    machines = Session(page_of("images")).machines
    found = track_landscape(machines, machines.session.training_data().train, n_starts=100)
    for position, snapshot in enumerate(found.snapshots):
        page.locator('[data-part="epoch"]').fill(str(position))
        assert (
            page.locator('[data-part="which"]')
            .inner_text()
            .startswith(f"{snapshot.epoch}: {snapshot.n_solutions} solution")
        )
        assert page.locator(CIRCLES).count() == snapshot.n_solutions
    page.locator('[data-part="epoch"]').fill("0")
    assert (
        page.locator('[data-part="play"]').evaluate("button => { button.click(); return button.innerText; }") == "Stop"
    )
    eventually(page, lambda: int(page.locator('[data-part="epoch"]').input_value()) >= 1)


def test_the_keyboard(visit):
    page = visit("images")
    page.locator(".map").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(DETAILS).inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(DETAILS).inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert page.locator(DETAILS).inner_text() == first
    page.keyboard.press("Enter")
    assert page.locator(PINNED).count() == 1
    page.keyboard.press("Escape")
    assert page.locator(PINNED).count() == 0
    page.locator('[data-part="epoch"]').focus()
    before = page.locator('[data-part="which"]').inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator('[data-part="which"]').inner_text() != before
    page.locator(".leaf").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(PINNED).count() == 1
    page.locator(".branch").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".branch").first.get_attribute("aria-expanded") == "false"
    page.locator(".fields svg").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".fields .card").is_visible()


def test_leaves_of_the_tree_show_their_solution(visit):
    page = visit("images")
    page.locator('[data-part="epoch"]').fill("0")
    page.locator(".leaf").first.dispatch_event("pointerover")
    assert "Epoch 12, solution" in page.locator(DETAILS).inner_text()
    assert page.locator(".leaf.chosen").count() == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "size", "colors"),
    [
        *[("images", "desk", "light"), ("bars", "phone", "dark"), ("categories", "desk", "dark")],
        *[("numbers", "phone", "light"), ("images", "phone", "dark")],
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product(["images", "bars", "categories", "numbers"], SIZES, ["light", "dark"])
        ],
    ],
)
def test_every_kind_of_data_on_every_screen(visit, kind, size, colors):
    page = visit(kind, viewport=SIZES[size], color_scheme=colors)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    page.locator(CIRCLES).last.hover()
    eventually(page, lambda: np.ptp(gray(page.locator(DETAILS + " canvas.large"))) > 0)
    box = page.locator(DETAILS + " canvas.large").bounding_box()
    assert box["height"] > 50
    assert box["width"] > 50
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (colors == "light")
    ink = page.evaluate("getComputedStyle(document.querySelector('.figure svg text')).fill")  # of charts, too
    assert (min(map(int, re.findall(r"\d+", ink)[:3])) >= 200) == (colors == "dark")


def test_without_scripts_there_are_pictures(visit):
    page = visit("images", java_script_enabled=False)
    assert page.locator(".explorer-block").is_hidden()
    assert page.locator("noscript svg image").count() == 1
    assert page.locator("svg[role=img]").count() >= 6
    assert page.locator("table.numbers tr").count() >= 5
    assert page.locator(".tree .node").count() >= 6
    assert page.locator(".tree image").count() == page.locator(".tree .node").count()
    assert page.locator(".save").count() == 0
    explanation = page.locator("details.fact p").first
    assert explanation.is_hidden()
    page.locator("details.fact summary").first.click()
    assert explanation.is_visible()


def test_labels_color_the_map_the_tree_and_the_samples(visit):
    page = visit("images")
    legend = page.locator('[data-part="label-legend"] li')
    assert legend.all_inner_texts() == [f"kind {number}" for number in range(6)]
    swatches = legend.locator("i").evaluate_all("all => all.map(i => getComputedStyle(i).backgroundColor)")
    assert len(set(swatches)) == 6

    def colors(selector, name):
        return set(page.locator(selector).evaluate_all(f"all => all.map(e => getComputedStyle(e).{name})"))

    assert colors(CIRCLES, "fill") <= set(swatches)
    assert colors('[data-part="points"] circle', "fill") == set(swatches)
    assert colors(".tree .edge", "stroke") <= set(swatches)
    assert colors(".tree .leaf .beside rect", "fill") <= set(swatches)
    assert len(colors('[data-name="samples"] path', "fill") & set(swatches)) > 1
    page.locator('[data-part="color"]').select_option("energy")
    assert not colors(CIRCLES, "fill") & set(swatches)
    assert page.locator('[data-part="energy-legend"]').is_visible()
    assert not legend.first.is_visible()


def test_what_is_said_is_true_of_the_epoch_shown(visit, page_of):
    page = visit("images")
    machines = Session(page_of("images")).machines
    found = track_landscape(machines, machines.session.training_data().train, n_starts=100)
    assert len({snapshot.n_solutions for snapshot in found.snapshots}) > 1
    for position, snapshot in enumerate(found.snapshots):
        page.locator('[data-part="epoch"]').fill(str(position))
        text = page.locator('[data-part="findings"]').inner_text()
        assert f"At epoch {snapshot.epoch}:" in text
        assert f"\n{snapshot.n_solutions} solution" in text


def test_solutions_can_be_sorted(visit):
    page = visit("images")
    cards = page.locator('[data-part="gallery"] button')

    def numbers(word):
        texts = cards.evaluate_all("all => all.map(b => b.innerText)")
        return [float(re.search(word, own).group(1)) for own in texts]

    assert numbers(r"(\d+) start") == sorted(numbers(r"(\d+) start"), reverse=True)
    page.locator('[data-part="sort"]').select_option("energy")
    assert numbers(r"F (\S+)") == sorted(numbers(r"F (\S+)"))
    assert cards.count() == page.locator(CIRCLES).count()
    cards.first.click()
    assert page.locator(PINNED).count() == 1


def test_branches_of_the_tree_can_be_folded(visit):
    page = visit("images")
    shown = page.locator(".tree .node:visible")
    before = shown.count()
    height = page.locator(".tree").bounding_box()["height"]
    page.locator(".tree .branch").first.dispatch_event("click")
    assert shown.count() < before
    assert page.locator(".tree").bounding_box()["height"] < height
    page.locator(".tree .branch").first.dispatch_event("click")
    assert shown.count() == before
    assert page.locator(".tree").bounding_box()["height"] == pytest.approx(height)


def test_a_receptive_field_can_be_looked_at(visit):
    page = visit("images")
    card = page.locator(".fields .card")
    assert card.is_hidden()
    page.locator(".fields svg").click(position={"x": 30, "y": 30})
    eventually(page, lambda: np.ptp(gray(card.locator("canvas.large"))) > 0)
    assert "Unit" in card.inner_text()
    assert card.locator(".examples canvas").count() == 6


def test_every_figure_can_be_saved(visit, tmp_path):
    page = visit("images")
    figures = page.locator(".figure:visible")
    assert figures.count() >= 6
    assert page.locator(".figure:visible .save").count() == figures.count()
    for name, kind in (("map", "SVG"), ("tree", "SVG"), ("training", "SVG"), ("training", "PNG"), ("tree", "PNG")):
        with page.expect_download() as download:
            page.locator(f'.figure[data-name="{name}"] .save button').get_by_text(kind).dispatch_event("click")
        assert download.value.suggested_filename == f"{name}.{kind.lower()}"
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        if kind == "SVG":
            drawing = ElementTree.fromstring(path.read_text())
            assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
            assert "var(" not in path.read_text()  # it has its colors with it
            assert all("style" in use.attrib for use in drawing.iter("{http://www.w3.org/2000/svg}use"))
            marks = [mark for defs in drawing.iter("{http://www.w3.org/2000/svg}defs") for mark in defs]
            assert not any("fill:" in mark.get("style", "") for mark in marks)  # but that of their use
        else:
            pixels = np.asarray(Image.open(path).convert("L"))
            assert np.ptp(pixels) > 100


@pytest.mark.long
def test_two_runs_side_by_side(visit, page_of, tmp_path):
    folders = [Session(page_of("images")), Session(page_of("bars"))]
    options = Options(n_starts=60, title="Both")
    path = write_report(*folders, options=options, out=tmp_path / "both.html").path
    page = visit(path)
    assert page.locator("h1").inner_text() == "Both"
    boxes = [page.locator(".run").nth(place).bounding_box() for place in (0, 1)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]  # beside each other
    for place in (0, 1):
        own = page.locator(".run").nth(place)
        own.locator('[data-part="epoch"]').fill("0")
        assert own.locator('[data-part="which"]').inner_text().startswith("3:")
        own.locator(".map").focus()
        page.keyboard.press("ArrowRight")
        assert "Epoch 3, solution" in own.locator(DETAILS).inner_text()
    differing = page.locator(".comparison table").last.inner_text()
    assert "data" in differing
    assert "epochs" not in differing
    narrow = visit(path, viewport=SIZES["phone"])
    assert narrow.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"]["width"]


# ----- without a browser


@pytest.mark.parametrize("kind", ["images", "bars", "categories", "numbers"])
def test_a_page_holds_all_it_needs(kind, page_of):
    text = (page_of(kind) / "report.html").read_text()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert len(text) < 1_500_000
    told = ("independent units", "Settings", "batch_size", "tapmachine report", f"tapmachine {__version__}")
    for expected in told:
        assert expected in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", text)
    assert "that of independent units" in text
    assert ("Hidden units and columns" in text) == (kind != "images")  # by the names of columns
    assert ("<h3>Receptive fields" in text) == (kind == "images")


def test_sheets_hold_rows_of_gray():
    import base64
    import io

    values = torch.rand(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    content = base64.b64decode(gray_png(values).removeprefix("data:image/png;base64,"))
    found = np.asarray(Image.open(io.BytesIO(content)))
    assert found.shape == (7, 20)
    assert np.abs(found / 255 - values.numpy()).max() <= 0.5 / LEVELS + 0.5 / 255


# ----- names that mean harm


class Elements(HTMLParser):
    """The elements of a page with their attributes, its text, and what is inside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.programs = [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, [(name, value) for name, value in attributes if name != "data-name"]))

    def handle_data(self, data):
        if self.cdata_elem in ("script", "style"):  # newer parsers have such a mode for titles, too
            self.programs += data
        else:
            self.text += data

    def handle_comment(self, data):
        self.tags.append(("comment", data))


HARM = '"><img src=x onerror=window.harmed=1>.npy'


@pytest.fixture(scope="module")
def page_with(tmp_path_factory):
    """A page on which names are the run's, settings and their values, sentences and captions.

    Without any it is that of the run as it is, whose data have a name that means harm, too.
    """
    folder = tmp_path_factory.mktemp("names")
    np.save(folder / HARM, patterns(100))
    options = {"hidden": (12,), "epochs": 2, "batch_size": 10, "measure_every": 2}
    run_training(Settings(str(folder / HARM), **options), folder / "run")
    found = results.analyze(Session(folder / "run"), n_starts=20)

    def make(names=()):
        told = replace(
            found,
            settings=dict(zip(names, names, strict=True)) or found.settings,
            likelihoods=replace(found.likelihoods, problems=tuple(names)),
        )
        return writing.page([told], " ".join(names), [Figure("<svg></svg>", name, name) for name in names])

    return make


def test_names_that_mean_harm_are_text(page_with):
    assert len(set(NAMES)) == 100
    tame, hostile = (Elements(page_with(names)) for names in ([f"name {n}" for n in range(100)], NAMES))
    assert hostile.tags == tame.tags
    assert hostile.programs == tame.programs
    for name in NAMES:
        assert hostile.text.count(name) >= 4, name  # in the title, a list, and a table, twice
        assert "<" not in writing._json({name: name})
        assert json.loads(writing._json({name: name})) == {name: name}


def test_names_that_mean_harm_in_a_browser(visit, page_with, tmp_path):
    path = tmp_path / "harm.html"
    path.write_bytes(page_with(NAMES).encode())
    page = visit(path)
    page.wait_for_timeout(500)
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("location.href") == path.as_uri()
    assert page.locator(CIRCLES).count() >= 1  # the page's own script has run
    cells = page.locator("table").last.locator("th")
    assert cells.count() == len(NAMES)
    assert cells.nth(NAMES.index("&lt;script&gt;")).text_content() == "&lt;script&gt;"


@pytest.mark.long
def test_the_name_of_data_is_text(page_with):
    """From the disk to the page, by way of the settings."""
    found = Elements(page_with())
    assert found.text.count(HARM) == 1
    assert not any(value == "x" for _, attributes in found.tags for _, value in attributes)
