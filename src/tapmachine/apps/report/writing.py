"""Assembly of the report page, a self-contained HTML file on a run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from tapmachine import __version__
from tapmachine.apps.report import sections, table_sections
from tapmachine.apps.report.explanations import explain
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.results import N_STARTS, RunResults, analyze
from tapmachine.apps.report.scripted import for_script
from tapmachine.data.files import write_atomically
from tapmachine.display.html import escape, items
from tapmachine.runs.evaluation import Say
from tapmachine.runs.session import Session

# The page loads no external resources.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SCRIPTS = ("page.js", "map.js", "gallery.js", "tree.js", "fields.js", "save.js")


@dataclass(frozen=True)
class Options:
    """Options of a report page.

    Attributes:
        n_starts: Maximum number of data rows used as starting points of TAP solutions (default: 500).
        data: Data set to use instead of the run's data. Required for machine files.
        labels: Path of a .npy or .csv file with one label per row of the data (default: built-in labels, if any).
        title: Title of the page (default: the name of the run).
        command: Command shown on the page (default: `tapmachine report` with the run directory).
    """

    n_starts: int = N_STARTS
    data: str | None = None
    labels: str | None = None
    title: str | None = None
    command: str | None = None


class Report(NamedTuple):
    """Path and contents of a report page.

    Attributes:
        path: Path to the HTML file.
        results: Results shown on the page.
    """

    path: Path
    results: RunResults


def write_report(
    session: Session,
    options: Options | None = None,
    more: Sequence[Figure] = (),
    say: Say = lambda line: None,
    out: Path | None = None,
) -> Report:
    """Write a report page on a run.

    Args:
        session: Run directory or machine file.
        options: Options of the page (default: `Options()`).
        more: Additional figures, shown at the top of the page (default: none).
        say: Callback that receives progress messages (default: messages are ignored).
        out: Output file (default: report.html in the run directory, or an .html file next to the machine file).

    Returns:
        The path to the page and its contents.
    """
    options = options or Options()
    run = analyze(session, options.n_starts, say, options.data, options.labels)
    path = out or (session.path.with_suffix(".html") if session.run is None else session.path / "report.html")
    command = options.command or f"tapmachine report {session.path}"
    write_atomically(path, page(run, options.title, more, command).encode())
    return Report(path, run)


def page(run: RunResults, title: str | None = None, more: Sequence[Figure] = (), command: str = "") -> str:
    """Return the HTML of a report page."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made_by = f" · <code>{escape(command)}</code>" if command else ""
    return Template(_resource("page.html")).substitute(
        policy=POLICY,
        title=escape(title or run.name),
        style=_resource("page.css"),
        origin=f"tapmachine {__version__} · {when}{made_by}",
        before=f'<div class="hero">{"".join(figure.html() for figure in more)}</div>' if more else "",
        run=_run(run),
        script="\n".join(map(_resource, SCRIPTS)),
    )


def _run(run: RunResults) -> str:
    """Return the HTML of the results."""
    script = for_script(run)
    parts = [sections.facts(run)]
    if run.landscape is not None:
        last = run.landscape.track.snapshots[-1]
        parts += [
            f"<h2>TAP solutions</h2><div data-part='findings'><p>At epoch <span>{last.epoch}</span>:</p>",
            items(run.landscape.sentences[-1], "findings"),
            "</div>",
            explain("solution", "start", "basin", "free energy F", "stable"),
            sections.legend(run.landscape),
            _resource("explorer.html") if script is not None else "",
            sections.tree(run),
        ]
    parts.append(sections.learned(run))
    if run.table is not None:
        sections_of_table = (table_sections.columns, table_sections.responses, table_sections.associations)
        parts += [section(run.table) for section in sections_of_table]
    curves = sections.training(run)
    parts += [
        f"<h2>Training</h2>{curves}" if curves else "",
        "<h2>Log-likelihood</h2><p>Mean log-likelihood per row, in nats.</p>",
        sections.likelihoods(run),
        sections.settings(run),
    ]
    if script is not None:
        script["fields"] = sections.fields_for_script(run)
        parts.append(f'<script type="application/json" class="data">{_json(script)}</script>')
    inside = "\n".join(part for part in parts if part)
    return f'<article class="run">{inside}</article>'


def _json(value: object) -> str:
    """Encode a value as JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return files("tapmachine.apps.report").joinpath(name).read_text(encoding="utf-8")
