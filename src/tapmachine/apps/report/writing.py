"""Assembly of the report page, a self-contained HTML file on one or more runs."""

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
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.results import N_STARTS, Findings, Say, look_at
from tapmachine.apps.report.scripted import for_script
from tapmachine.display.html import escape, items, table
from tapmachine.machine.files import write_atomically
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
        findings: Results shown on the page, one entry per run.
    """

    path: Path
    findings: list[Findings]


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
    findings = []
    for session in sessions:
        heard = say if len(sessions) == 1 else lambda line, path=session.path: say(f"{path}: {line}")
        findings.append(look_at(session, options.n_starts, heard, options.data, options.labels))
    first = sessions[0].path
    path = out or (first.with_suffix(".html") if sessions[0].run is None else first / "report.html")
    command = options.command or f"tapmachine report {' '.join(str(session.path) for session in sessions)}"
    write_atomically(path, page(findings, options.title, more, command).encode())
    return Report(path, findings)


def page(findings: Sequence[Findings], title: str | None = None, more: Sequence[Figure] = (), command: str = "") -> str:
    """Return the HTML of a report page."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made_by = f" · <code>{escape(command)}</code>" if command else ""
    is_one = len(findings) == 1
    hero = f'<div class="hero">{"".join(figure.html() for figure in more)}</div>' if more else ""
    return Template(_resource("page.html")).substitute(
        policy=POLICY,
        title=escape(title or " and ".join(found.name for found in findings)),
        style=_resource("page.css"),
        origin=f"tapmachine {__version__} · {when}{made_by}",
        before=hero + ("" if is_one else _comparison(findings)),
        layout="runs one" if is_one else "runs several",
        runs="\n".join(_run(found, is_one) for found in findings),
        script="\n".join(map(_resource, SCRIPTS)),
    )


def _run(found: Findings, is_alone: bool) -> str:
    """Return the HTML of one run."""
    script = for_script(found)
    parts = ["" if is_alone else f"<h2>{escape(found.name)}</h2>", sections.facts(found)]
    if found.landscape is not None:
        last = found.landscape.track.snapshots[-1]
        parts += [
            f"<h2>TAP solutions</h2><div data-part='findings'><p>At epoch <span>{last.epoch}</span>:</p>",
            items(found.landscape.sentences[-1], "findings"),
            "</div>",
            sections.explain("solution", "start", "basin", "free energy F", "stable"),
            sections.legend(found.landscape),
            _resource("explorer.html") if script is not None else "",
            f"<noscript>{sections.solutions_without_script(found)}</noscript>",
            sections.tree(found),
        ]
    parts.append(sections.learned(found))
    if found.table is not None:
        names = [own.name for own in found.columns]
        parts += [
            table_sections.columns(found.table),
            table_sections.responses(found.table, names),
            table_sections.associations(found.table),
        ]
    curves = sections.training(found)
    parts += [f"<h2>Training</h2>{curves}" if curves else ""]
    parts += [
        "<h2>Log-likelihood</h2><p>Mean log-likelihood per row, in nats.</p>",
        sections.likelihoods(found),
        sections.settings(found),
    ]
    if script is not None:
        script["fields"] = sections.fields_for_script(found)
        parts.append(f'<script type="application/json" class="data">{_json(script)}</script>')
    inside = "\n".join(part for part in parts if part)
    return f'<article class="run" aria-label="{escape(found.name)}">{inside}</article>'


def _comparison(findings: Sequence[Findings]) -> str:
    """Return HTML tables of the main results of all runs and of the settings that differ."""
    rows: list[tuple[object, ...]] = [("machine", *(found.machine.summary() for found in findings))]
    best = [sections.best_likelihood(found) for found in findings]
    rows.append(("log-likelihood of training data", *(own.train if own else None for own in best)))
    rows.append(("log-likelihood of held-out data", *(own.test if own else None for own in best)))
    rows.append(("estimator", *(own.estimator if own else None for own in best)))
    last = [None if found.landscape is None else found.landscape.track.snapshots[-1] for found in findings]
    rows.append(("solutions", *(own.n_solutions if own else None for own in last)))
    rows.append(("stable solutions", *(int(own.stable.sum()) if own else None for own in last)))
    names = dict.fromkeys(name for found in findings for name in found.settings)
    differing = [
        (name, *(found.settings.get(name) for found in findings))
        for name in names
        if len({str(found.settings.get(name)) for found in findings}) > 1
    ]
    heads = ["", *(found.name for found in findings)]
    return (
        f'<section class="comparison"><h2>Side by side</h2><div class="wide">{table(heads, rows, "numbers", 2)}</div>'
        f'<h3>Settings that differ</h3><div class="wide">{table(heads, differing, "numbers", 4)}</div></section>'
        if differing
        else f'<section class="comparison"><h2>Side by side</h2><div class="wide">{table(heads, rows, "numbers", 2)}'
        "</div><p>The runs have the same settings.</p></section>"
    )


def _json(value: object) -> str:
    """Encode a value as JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return files("tapmachine.apps.report").joinpath(name).read_text(encoding="utf-8")
