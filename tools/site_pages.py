"""MkDocs hooks that generate pages of the documentation site: the reference, the gallery and the changelog.

The reference has a page for each namespace, generated from its `__all__`. The gallery has a page for each script in
examples/gallery, generated from its docstring and its figure.
"""

import ast
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import tapmachine

ROOT = Path(__file__).parents[1]
GALLERY = sorted((ROOT / "examples" / "gallery").glob("[a-z]*.py"))
TITLES = {
    "units": "Unit types",
    "machine": "Machines",
    "solver": "Solver and schemes",
    "likelihood": "Likelihoods",
    "posterior": "Denoising and imputation",
    "channels": "Channels",
    "measurements": "Measurements",
    "training": "Training",
    "landscape": "Landscape",
    "analysis": "Analysis",
}


def reference_pages() -> dict[str, str]:
    """Markdown of the reference by file name: a page for top-level names, and a page for each namespace."""
    spaces = reference.modules()
    covered = {name for module in spaces.values() for name in module.__all__}
    rest = [name for name in tapmachine.__all__ if name not in spaces and name not in covered]
    pages = {"reference/basics.md": _page("Estimator and basics", "", [f"tapmachine.{name}" for name in rest])}
    for name, module in spaces.items():
        title = TITLES.get(name, name.capitalize())
        names = [f"tapmachine.{name}.{own}" for own in module.__all__]
        pages[f"reference/{name}.md"] = _page(title, f"`tapmachine.{name}`: {reference.summary(module)}", names)
    return pages


def _page(title: str, head: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", head, *(f"::: {name}" for name in names)]) + "\n"


def gallery_pages() -> dict[str, str]:
    """Markdown of the gallery by file name: an overview with a figure of each script, and a page for each script."""
    pages, cards = {}, []
    for path in GALLERY:
        code = path.read_text()
        title, _, text = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n\n")
        title = title.rstrip(".")
        picture = f"![{title}](../images/gallery/{path.stem}.png)"
        body = code.split('"""\n', 1)[1].lstrip("\n")
        pages[f"gallery/{path.stem}.md"] = (
            f"# {title}\n\n{picture}\n\n{text}\n\n`examples/gallery/{path.name}`:\n\n```python\n{body}```\n"
        )
        cards.append(f"<div markdown>\n[{picture}<br>{title}]({path.stem}.md)\n</div>")
    overview = (ROOT / "docs" / "gallery" / "index.md").read_text()
    pages["gallery/index.md"] = overview + '\n<div class="cards" markdown>\n' + "\n".join(cards) + "\n</div>\n"
    return pages


def changelog_page() -> dict[str, str]:
    """Markdown of the changelog, with links relative to docs/."""
    return {"changelog.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")}


def reproduction_pages() -> dict[str, str | Path]:
    """The page on the reproduction of the paper, with links relative to docs/, and the figures it shows."""
    folder = ROOT / "reproduction"
    text = (folder / "README.md").read_text().replace("](../docs/", "](").replace("](results/", "](reproduction/")
    shown = re.findall(r"\]\(reproduction/([^)]+)\)", text)
    return {"reproduction.md": text, **{f"reproduction/{name}": folder / "results" / name for name in shown}}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add generated pages, and pages of docs/ that are not listed in mkdocs.yml, to the navigation."""
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text()))
    folders = {"Guide": "docs/guide", "Benchmarks": "docs/benchmarks", "Background": "docs"}
    more = {
        title: [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / folder).glob("*.md"))]
        for title, folder in folders.items()
    }
    more["Gallery"] = sorted(gallery_pages(), key=lambda name: (name != "gallery/index.md", name))
    more["Reference"] = ["reference.md", *reference_pages()]
    more["Background"] = [name for name in more["Background"] if name != "reference.md"] + ["changelog.md"]
    for entry in config.nav or []:
        for title in entry.keys() & more.keys():
            entry[title] += [name for name in more[title] if name not in listed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    for name, content in {**reference_pages(), **gallery_pages(), **changelog_page(), **reproduction_pages()}.items():
        if (old := files.get_file_from_path(name)) is not None:
            files.remove(old)
        source = {"abs_src_path": str(content)} if isinstance(content, Path) else {"content": content}
        files.append(File.generated(config, name, **source))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adapt links to the page on the reproduction, and link the names in the overview of the reference."""
    markdown = markdown.replace("../reproduction/README.md", "reproduction.md")
    if page.file.src_uri != "reference.md":
        return markdown
    spaces = reference.modules()
    where = {
        **{name: f"tapmachine.{name}" for name in tapmachine.__all__},
        **{own: f"tapmachine.{name}.{own}" for name, module in spaces.items() for own in module.__all__},
    }
    return re.sub(r"^- `(\w+)`", lambda m: f"- [`{m[1]}`][{where[m[1]]}]", markdown, flags=re.MULTILINE)
