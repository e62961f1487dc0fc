"""The page about a run, in a real browser: it loads, answers to pointer and keyboard, and asks nobody for anything."""

import json
import re
import shutil
import time
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from name_cases import NAMES
from run_cases import PATIENCE

from tapmachine.analysis.landscape import track_landscape
from tapmachine.analysis.plots import Picture, new_figure
from tapmachine.apps.report import findings, write_report, writing
from tapmachine.apps.report.interactive import LEVELS, sheet
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.machines import KeptMachines
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

# Small machines with strong couplings: TAP and the exact value may differ, and a page says so.
pytestmark = pytest.mark.filterwarnings("ignore::tapmachine.data.errors.LikelihoodWarning")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZES = {"desk": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 800}}


def patterns(rows=300, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 2, (6, 36))[generator.integers(0, 6, rows)]
    return np.abs(x - (generator.random(x.shape) < 0.02)).astype(np.float32)


def data_of(kind):
    if kind == "images":
        return patterns().reshape(-1, 6, 6), "auto"
    if kind == "bars":
        return patterns(), "auto"
    if kind == "categories":
        return np.tile(patterns().astype(int), 4) + np.tile(patterns(seed=1).astype(int), 4), "categorical"  # wide
    return patterns() + 0.1 * np.random.default_rng(1).normal(size=(300, 36)), "gaussian"


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """Pages on runs of several kinds of data, made once each."""
    made = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(findings, "TEMPERATURES", 200)

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
                warnings.filterwarnings("ignore", message=r"TAP and \w+ have drifted apart")
                write_report(RunFolder(folder / "run"), n_starts=100)
            made[kind] = folder / "run"
        return made[kind]

    yield make
    patch.undo()


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


def test_pointing_at_a_solution_shows_it(visit, page_of):
    page = visit("images")
    machines = KeptMachines(page_of("images"))
    found = track_landscape(machines, machines.training_rows(), n_starts=100)
    last = found.snapshots[-1]
    circles = page.locator("#solutions circle")
    assert circles.count() == last.n_solutions
    order = last.counts.argsort(descending=True, stable=True).tolist()
    for place in (0, len(order) - 1):
        page.locator(f'#solutions circle[data-place="{place}"]').hover(force=True)
        text = page.locator("#details").inner_text()
        number = order[place]
        assert f"solution {number}: F = {float(last.free_energy[number]):.2f} nats" in text
        assert f"{int(last.counts[number])} of {len(found.starts)} starts" in text
        large, expected = page.locator("#details canvas.large"), last.means[0][number].view(6, 6).numpy()
        eventually(page, lambda: np.abs(gray(large) / 255 - expected).max() < 0.6 / LEVELS)  # noqa: B023
        examples = page.locator("#details .examples canvas")
        rows = (last.basin == number).nonzero().squeeze(-1)[:4]
        assert examples.count() == len(rows)
        first = found.starts[rows[0]].view(6, 6).numpy()
        eventually(page, lambda: np.abs(gray(examples.first) / 255 - first).max() < 0.01)  # noqa: B023


def test_a_real_pointer_and_clicks_that_pin(visit):
    page = visit("images")
    smallest = page.locator("#solutions circle").last  # drawn on top
    smallest.hover()
    assert "solution" in page.locator("#details").inner_text()
    smallest.click()
    assert page.locator("#pinned .card").count() == 1
    assert page.locator("#solutions circle.pinned").count() == 1
    page.locator("#epoch").fill("0")
    page.locator("#solutions circle").last.click()
    assert page.locator("#pinned .card").count() == 2  # of two epochs, side by side
    page.locator("#pinned button").first.click()
    assert page.locator("#pinned .card").count() == 1
    page.locator("#solutions circle").last.click()
    assert page.locator("#pinned .card").count() == 0


def test_the_slider_goes_through_the_epochs(visit, page_of):
    page = visit("images")
    machines = KeptMachines(page_of("images"))
    found = track_landscape(machines, machines.training_rows(), n_starts=100)
    for position, snapshot in enumerate(found.snapshots):
        page.locator("#epoch").fill(str(position))
        assert page.locator("#which").inner_text().startswith(f"{snapshot.epoch}: {snapshot.n_solutions} solution")
        assert page.locator("#solutions circle").count() == snapshot.n_solutions
    page.locator("#epoch").fill("0")
    assert page.locator("#play").evaluate("button => { button.click(); return button.innerText; }") == "Stop"
    eventually(page, lambda: int(page.locator("#epoch").input_value()) >= 1)


def test_the_keyboard(visit):
    page = visit("images")
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#details").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#details").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert page.locator("#details").inner_text() == first
    page.keyboard.press("Enter")
    assert page.locator("#pinned .card").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#pinned .card").count() == 0
    page.locator("#epoch").focus()
    before = page.locator("#which").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#which").inner_text() != before
    page.locator(".leaf").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#pinned .card").count() == 1


def test_leaves_of_the_tree_show_their_solution(visit):
    page = visit("images")
    page.locator("#epoch").fill("0")
    page.locator(".leaf").first.dispatch_event("pointerover")
    assert "Epoch 12, solution" in page.locator("#details").inner_text()
    assert page.locator(".leaf.chosen").count() == 1


@pytest.mark.parametrize("kind", ["images", "bars", "categories", "numbers"])
@pytest.mark.parametrize(
    ("size", "colors"),
    [
        ("desk", "light"),
        ("phone", "dark"),
        pytest.param("desk", "dark", marks=pytest.mark.slow),
        pytest.param("phone", "light", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_data_on_every_screen(visit, kind, size, colors):
    page = visit(kind, viewport=SIZES[size], color_scheme=colors)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    page.locator("#solutions circle").last.hover()
    eventually(page, lambda: np.ptp(gray(page.locator("#details canvas.large"))) > 0)
    box = page.locator("#details canvas.large").bounding_box()
    assert box["height"] > 50
    assert box["width"] > 50
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (colors == "light")
    outline = page.evaluate("getComputedStyle(document.querySelector('#solutions circle')).stroke")
    assert min(map(int, re.findall(r"\d+", outline)[:3])) >= 200  # light, so that dark dots stand out from a dark map


def test_without_scripts_there_are_pictures(visit):
    page = visit("images", java_script_enabled=False)
    assert page.locator("#explorer").is_hidden()
    assert page.locator("noscript img").count() == 1
    assert page.locator("img").count() >= 8
    assert page.locator("table.numbers tr").count() >= 5
    assert page.locator(".tree path").count() == 1


# ----- without a browser


@pytest.mark.parametrize("kind", ["images", "bars", "categories", "numbers"])
def test_a_page_holds_all_it_needs(kind, page_of):
    text = (page_of(kind) / "report.html").read_text()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert len(text) < 1_500_000
    for expected in ("AIS, reverse", "pseudo", "Settings", "TAP solutions", "batch_size"):
        assert expected in text
    last = RunFolder(page_of(kind)).last_epoch()
    assert f"At epoch {last}, the last of those shown:" in text  # the sentences do not follow the slider
    assert "that of independent units" in text


def test_sheets_hold_rows_of_gray():
    import base64
    import io

    from PIL import Image

    values = torch.rand(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    content = base64.b64decode(sheet(values).removeprefix("data:image/png;base64,"))
    found = np.asarray(Image.open(io.BytesIO(content)))
    assert found.shape == (7, 20)
    assert np.abs(found / 255 - values.numpy()).max() <= 0.5 / LEVELS + 0.5 / 255
    assert sheet(values[:0]) == ""


# ----- names that mean harm


class Elements(HTMLParser):
    """The elements of a page with their attributes, its text, and what is inside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.programs = [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, [(name, value) for name, value in attributes if name != "alt"]))

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
    folder, figure = tmp_path_factory.mktemp("names"), new_figure(1, 1)
    np.save(folder / HARM, patterns(100))
    options = {"hidden": (12,), "epochs": 2, "batch_size": 10, "measure_every": 2}
    run_training(Settings(str(folder / HARM), **options), folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "TEMPERATURES", 20)
        found = findings.look_at(RunFolder(folder / "run"), n_starts=20)

    def make(names=()):
        told = replace(
            found,
            settings=dict(zip(names, names, strict=True)) or found.settings,
            likelihoods=replace(found.likelihoods, warnings=tuple(names)),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "_png", lambda figure: "")  # which takes seconds
            return writing.page(told, " ".join(names), [Picture(figure, name) for name in names])

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
    assert page.locator("#solutions circle").count() >= 1  # the page's own script has run
    cells = page.locator("table").last.locator("th")
    assert cells.count() == len(NAMES)
    assert cells.nth(NAMES.index("&lt;script&gt;")).inner_text() == "&lt;script&gt;"


def test_the_name_of_data_is_text(page_with):
    """From the disk to the page, by way of the settings."""
    found = Elements(page_with())
    assert found.text.count(HARM) == 1
    assert not any(value == "x" for _, attributes in found.tags for _, value in attributes)
