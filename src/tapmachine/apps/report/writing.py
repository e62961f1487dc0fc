"""The report page of a run: a self-contained HTML file."""

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tapmachine.analysis.landscape.figures import fields_picture, landscape_pictures
from tapmachine.analysis.plots import Picture, heat_map, image_grid, new_figure, training_curves
from tapmachine.apps.report.findings import N_STARTS, SAMPLE_SWEEPS, Findings, Say, look_at
from tapmachine.apps.report.interactive import for_script, tree_svg
from tapmachine.machine.files import write_atomically
from tapmachine.runs.folder import MachineFile, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nothing is fetched from anywhere, whatever is in the page.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(
    folder: RunFolder,
    device: str = "cpu",
    more: Sequence[Picture] = (),
    n_starts: int = N_STARTS,
    say: Say = lambda line: None,
    data: str | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page of a run, or of a machine in a file by itself.

    Args:
        folder: the run folder.
        device: device to compute on.
        more: pictures to put first.
        n_starts: maximum number of rows of the data to start solutions from.
        say: called with a line of progress.
        data: other data than the run's; required for a machine in a file by itself.
        out: file to write (default: report.html in the run folder, or an .html file beside the machine's file).

    Returns:
        The path of the page.
    """
    new_figure(1, 1)  # fails at once if Matplotlib is missing
    findings = look_at(folder, device, n_starts, say, data)
    alone = isinstance(folder, MachineFile)
    path = out or (folder.path.with_suffix(".html") if alone else folder.path / "report.html")
    name = folder.path.stem if alone else folder.path.resolve().name
    write_atomically(path, page(findings, name, more).encode())
    return path


def page(findings: Findings, name: str, more: Sequence[Picture] = ()) -> str:
    """The page as text."""
    script = for_script(findings)
    pictures = landscape_pictures(findings.track, findings.embedding, findings.image_shape)
    maps = pictures.pop("maps", None)
    drawn_tree = pictures.pop("tree", None)
    sections = [
        _facts(findings),
        _figures(more),
        *(["<h2>Training</h2>", _figures([_curves(findings), pictures["free_energies"]])] if findings.records else []),
        "<h3>Log-likelihood, in nats</h3>",
        _likelihoods(findings),
        "<h2>Solutions</h2>",
        f"<p>At epoch {findings.track.snapshots[-1].epoch}, the last of those shown:</p>",
        _list(findings.diagnosis),
        _MAP if script else "",
        "<noscript>" + _figures([maps]) + "</noscript>" if maps else "",
        _figures([pictures[key] for key in ("map", "free_energy_slices") if key in pictures]),
    ]
    if drawn_tree is not None and script:
        sections += [
            "<h3>Tree</h3>",
            f"<p>{html.escape(drawn_tree.caption)}</p>",
            f'<div class="wide">{tree_svg(findings.track.tree, script["epochs"][-1]["number"])}</div>',
        ]
    sections += ["<h2>What the machine has learned</h2>", _figures(_learned(findings))]
    sections += ["<h2>Settings</h2>", _table(_given(findings.settings))]
    inside = "\n".join(part for part in sections if part)
    data = "" if script is None else f'<script type="application/json" id="landscape">{_json(script)}</script>'
    code = "" if script is None else f"<script>{_resource('page.js')}</script>"
    title = html.escape(name)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">
<title>{title} – tapmachine</title><style>{_resource("page.css")}</style></head><body>
<h1>{title}</h1>
{inside}
{data}
{code}
</body></html>
"""


_MAP = """<div id="explorer" hidden>
<p class="controls"><button type="button" id="play" aria-pressed="false">Play</button>
<label for="epoch">Epoch</label> <input type="range" id="epoch" min="0" step="1">
<output id="which" for="epoch"></output></p>
<div class="explorer">
<svg id="map" viewBox="-25 -25 1050 800" tabindex="0" role="application"
 aria-label="Map of solutions. Arrow keys go from one to the next, Enter pins it, Escape unpins the last."
 aria-describedby="help">
<g id="data-points"></g><g id="solutions"></g></svg>
<div><div id="details" class="card" aria-live="polite"></div></div>
</div>
<p id="help" class="small">Data in gray, solutions colored by the rank of their free energy (dark is low), larger where
more starts lead to them. Point at one to see it, click to pin it, or to unpin it. With the keyboard: Tab to the map,
arrow keys from one to the next, Enter to pin, Escape to unpin the last.</p>
<div id="pinned" class="cards" role="group" aria-label="Pinned solutions"></div>
</div>"""


def _facts(findings: Findings) -> str:
    last = findings.track.snapshots[-1]
    stable = int(last.stable.sum())
    failed = f"; {last.n_not_converged} starts did not converge" if last.n_not_converged else ""
    count = f"{last.n_solutions}, {stable} of them stable, from {len(last.basin)} rows of the data{failed}"
    epoch = [("epoch", str(last.epoch))] if findings.records else []  # a machine by itself has none
    facts = [("machine", findings.machine.summary()), *epoch, ("TAP solutions", count)]
    return _table(facts)


def _likelihoods(findings: Findings) -> str:
    """The table of all estimators."""
    heads = ("estimator", "training data", "±", "held-out data", "±", "rows", "ln Z", "±")
    rows = [
        (r.estimator, r.train, r.train_error, r.test, r.test_error, r.n_rows, r.log_partition, r.log_partition_error)
        for r in findings.likelihoods.rows
    ]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    note = "<p class=small>The pseudo-likelihood is no estimate of ln P(x): compare it between machines only.</p>"
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{body}</table></div>{note}' + _list(
        findings.likelihoods.warnings
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3f}"
    return html.escape(str(value))


def _learned(findings: Findings) -> list[Picture]:
    pictures = [fields_picture(ranking, findings.image_shape) for ranking in findings.rankings]
    if findings.machine.layers[0].is_categorical:  # their states are shown on the map
        return pictures
    chains = f"Samples: Gibbs chains, {SAMPLE_SWEEPS} sweeps after rows of the data."
    return [
        *pictures,
        Picture(_drawn(findings.samples, findings.image_shape), chains),
        Picture(_drawn(findings.rows, findings.image_shape), "Those rows of the data."),
    ]


def _curves(findings: Findings) -> Picture:
    figure = new_figure(4.5, 4.5)
    names = ("log_likelihood", "validation_log_likelihood", "tap_log_likelihood")
    training_curves(figure.subplots(), findings.records, names)
    methods = {record["log_likelihood_method"] for record in findings.records if record.get("log_likelihood_method")}
    by = f"{' and '.join(sorted(methods))}, with TAP's beside it" if methods else "not measured"
    return Picture(figure, f"Log-likelihood over the epochs in nats: {by}.")


def _drawn(rows: Tensor, shape: Sequence[int] | None) -> "Figure":
    figure = new_figure(4.5, 4.5)
    if shape is None:
        heat_map(figure.subplots(), rows)
    else:
        image_grid(figure.subplots(), rows, (shape[0], shape[1]))
    return figure


def _given(settings: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in settings.items() if value is not None]


def _figures(pictures: Sequence[Picture]) -> str:
    figures = "\n".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{_png(figure)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for figure, caption in pictures
    )
    return f'<div class="pictures">{figures}</div>' if pictures else ""


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f'<div class="wide"><table>{cells}</table></div>'


def _png(figure: "Figure") -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    return base64.b64encode(content.getvalue()).decode()


def _json(value: object) -> str:
    """JSON that cannot end the element it is in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return files("tapmachine.apps.report").joinpath(name).read_text(encoding="utf-8")
