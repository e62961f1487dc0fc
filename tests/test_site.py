"""The documentation site: built without warnings, complete, and readable from disk without a request elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import reference
from filelock import FileLock

import tapmachine

pytest.importorskip("mkdocs", reason="MkDocs is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site in a temporary folder, built by one of the processes that test."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not done.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            result = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
            done.write_text(f"{result.returncode}\n{result.stderr}")
    code, _, output = done.read_text().partition("\n")
    assert code == "0", output
    assert "WARNING" not in output
    return folder


class Page(HTMLParser):
    """What a page loads, where it links to, and the identifiers of its elements."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.links, self.ids = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if values.get(LOADED.get(tag, "")) and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="session")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


@pytest.mark.long
def test_every_link_leads_somewhere(pages):
    assert len(pages) > 40
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target.suffix == ".html":
                name = unquote(parts.fragment)
                assert name in pages[target].ids or name.startswith("__"), f"{path.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        assert [url for url in page.loaded if urlsplit(url).scheme not in ("", "data")] == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path.name


def test_every_public_name_is_in_the_reference(pages):
    ids = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "reference"))
    spaces = reference.modules()
    wanted = {f"tapmachine.{space}.{name}" for space, module in spaces.items() for name in module.__all__}
    covered = {name.rpartition(".")[2] for name in wanted}
    wanted |= {f"tapmachine.{name}" for name in tapmachine.__all__ if name not in spaces and name not in covered}
    wanted |= {f"tapmachine.RBM.{name}" for name in ("fit", "transform", "score", "sample", "impute", "predict")}
    assert len(wanted) > 100
    assert wanted - ids == set()


def test_reference_entries_have_signature_and_source(site):
    text = (site / "reference" / "solver.html").read_text()
    entry = text[text.index('id="tapmachine.solver.solve"') :]
    assert "max_sweeps" in entry[:5000]
    assert "Source code in" in entry[:200_000]


def test_every_gallery_script_has_a_page_with_its_picture(site):
    scripts = sorted((ROOT / "examples" / "gallery").glob("[a-z]*.py"))
    assert len(scripts) >= 12
    overview = (site / "gallery" / "index.html").read_text()
    for path in scripts:
        assert f"images/gallery/{path.stem}.png" in (site / "gallery" / f"{path.stem}.html").read_text()
        assert f'href="{path.stem}.html"' in overview


def test_in_a_browser_from_disk(site):
    """No messages, no requests elsewhere; and the search finds something."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    complaints, requests = [], []
    with playwright.sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        for name in ("start/tap.html", "gallery/index.html", "reference/units.html", "index.html"):
            page.goto(f"file://{site / name}")
            assert page.locator("h1").count() == 1
        page.keyboard.press("f")  # opens the search
        page.get_by_text("Type to start searching").wait_for(timeout=60_000)
        page.locator("[data-md-component=search-query]").press_sequentially("TruncatedGaussian")
        page.locator(".md-search-result__item").first.wait_for(timeout=60_000)
        assert "TruncatedGaussian" in page.locator(".md-search-result__list").inner_text()
        browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
