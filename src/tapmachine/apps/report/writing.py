"""Assembly of the report page, a self-contained HTML file on one or more runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from itertools import chain
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
from tapmachine.display.html import escape, items, table
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
        title: Title of the page (default: the names of the runs).
        command: Command shown on the page (default: `tapmachine report` with the run directories).
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
        runs: Results shown on the page, one entry per run.
    """

    path: Path
    runs: list[RunResults]


def write_report(
    *sessions: Session,
    options: Options | None = None,
    more: Sequence[Figure] = (),
    say: Say = lambda line: None,
    out: Path | None = None,
) -> Report:
    """Write a report page on one or more runs. Several runs are shown side by side.

    Args:
        sessions: Run directories or machine files.
        options: Options of the page (default: `Options()`).
        more: Additional figures, shown at the top of the page (default: none).
        say: Callback that receives progress messages (default: messages are ignored).
        out: Output file (default: report.html in the first run directory, or an .html file next to the machine file).

    Returns:
        The path to the page and its contents.
    """
    options = options or Options()
    runs = []
    for session in sessions:
        progress = say if len(sessions) == 1 else lambda line, path=session.path: say(f"{path}: {line}")
        runs.append(analyze(session, options.n_starts, progress, options.data, options.labels))
    first = sessions[0].path
    path = out or (first.with_suffix(".html") if sessions[0].run is None else first / "report.html")
    command = options.command or f"tapmachine report {' '.join(str(session.path) for session in sessions)}"
    write_atomically(path, page(runs, options.title, more, command).encode())
    return Report(path, runs)


def page(runs: Sequence[RunResults], title: str | None = None, more: Sequence[Figure] = (), command: str = "") -> str:
    """Return the HTML of a report page."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made_by = f" · <code>{escape(command)}</code>" if command else ""
    hero = f'<div class="hero">{"".join(figure.html() for figure in more)}</div>' if more else ""
    return Template(_resource("page.html")).substitute(
        policy=POLICY,
        title=escape(title or " and ".join(run.name for run in runs)),
        style=_resource("page.css"),
        origin=f"tapmachine {__version__} · {when}{made_by}",
        before=hero + (_comparison(runs) if len(runs) > 1 else ""),
        layout="runs one" if len(runs) == 1 else "runs several",
        runs="\n".join(_run(run, len(runs) == 1) for run in runs),
        script="\n".join(map(_resource, SCRIPTS)),
    )


def _run(run: RunResults, is_alone: bool) -> str:
    """Return the HTML of the results of one run."""
    script = for_script(run)
    parts = ["" if is_alone else f"<h2>{escape(run.name)}</h2>", sections.facts(run)]
    if run.landscape is not None:
        last = run.landscape.track.snapshots[-1]
        parts += [
            "<h2>TAP solutions</h2><p>Solutions are patterns that the machine has stored: mutually consistent means "
            "of all units, found by the mean-field iteration from rows of the data.</p><div data-part='findings'>"
            f"<p>At epoch <span>{last.epoch}</span>:</p>",
            items(run.landscape.sentences[-1], "findings"),
            "</div>",
            explain("solutions", "start", "basin", "free energy F", "stable"),
            sections.legend(run.landscape),
            _resource("explorer.html") if script is not None else "",
            f"<noscript>{sections.solutions_without_script(run)}</noscript>",
            sections.solutions(run),
            sections.tree(run),
        ]
    parts.append(sections.learned(run))
    if run.table is not None:
        sections_of_table = (
            table_sections.imputation, table_sections.unusual, table_sections.responses, table_sections.columns,
            table_sections.associations,
        )  # fmt: skip
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
    return f'<article class="run" aria-label="{escape(run.name)}">{inside}</article>'


def _comparison(runs: Sequence[RunResults]) -> str:
    """Return HTML tables of the main results of all runs and of the settings that differ."""
    last = [None if run.landscape is None else run.landscape.track.snapshots[-1] for run in runs]
    scores = [{} if run.likelihoods is None else run.likelihoods.scores for run in runs]
    names = dict.fromkeys(chain(*scores))  # of data sets
    rows: list[tuple[object, ...]] = [
        ("machine", *(run.machine.summary() for run in runs)),
        *(
            (f"log-likelihood, {name}", *(score.get(name) for score in scores))
            for name in dict.fromkeys(chain(*scores))
        ),
        ("solutions", *(snapshot and snapshot.n_solutions for snapshot in last)),
        ("stable solutions", *(snapshot and int(snapshot.stable.sum()) for snapshot in last)),
    ]
    names = dict.fromkeys(name for run in runs for name in run.settings)
    settings = [(name, *(run.settings.get(name) for run in runs)) for name in names]
    differing = [row for row in settings if len({*map(str, row[1:])}) > 1]
    heads = ["", *(run.name for run in runs)]
    rest = "<p>The runs have the same settings.</p>"
    if differing:
        rest = f'<h3>Settings that differ</h3><div class="wide">{table(heads, differing, "numbers", 4)}</div>'
    results = f'<div class="wide">{table(heads, rows, "numbers", 2)}</div>'
    return f'<section class="comparison"><h2>Side by side</h2>{results}{rest}</section>'


def _json(value: object) -> str:
    """Encode a value as JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return files("tapmachine.apps.report").joinpath(name).read_text(encoding="utf-8")
