"""The page itself."""

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tapmachine.files import write_atomically
from tapmachine.landscape.figures import fields_picture, landscape_pictures
from tapmachine.plots import Picture, heat_map, image_grid, new_figure, training_curves
from tapmachine.report.findings import N_STARTS, SAMPLE_SWEEPS, Findings, Say, look_at
from tapmachine.report.interactive import for_script, tree_svg
from tapmachine.runs import MachineFile, RunFolder

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
        folder: of the run.
        device: to compute on.
        more: pictures to put first.
        n_starts: rows of the data that solutions are started from, no more than that.
        say: what to do with a line on what happens.
        data: a source of other data than the run's, which a file by itself needs.
        out: the file to write; report.html in the folder of a run, and beside the file of a machine, by default.

    Returns:
        Where it is.
    """
    new_figure(1, 1)  # says so at once, if there is nothing to draw with
    found = look_at(folder, device, n_starts, say, data)
    alone = isinstance(folder, MachineFile)
    path = out or (folder.path.with_suffix(".html") if alone else folder.path / "report.html")
    name = folder.path.stem if alone else folder.path.resolve().name
    write_atomically(path, page(found, name, more).encode())
    return path


def page(found: Findings, name: str, more: Sequence[Picture] = ()) -> str:
    """The page as text."""
    script = for_script(found)
    pictures = landscape_pictures(found.track, found.embedding, found.image_shape)
    maps = pictures.pop("maps", None)
    drawn_tree = pictures.pop("tree", None)
    sections = [
        _facts(found),
        _figures(more),
        *(["<h2>Training</h2>", _figures([_curves(found), pictures["free_energies"]])] if found.records else []),
        "<h3>Log-likelihood, in nats</h3>",
        _likelihoods(found),
        "<h2>Solutions</h2>",
        f"<p>At epoch {found.track.snapshots[-1].epoch}, the last of those shown:</p>",
        _list(found.diagnosis),
        _MAP if script else "",
        "<noscript>" + _figures([maps]) + "</noscript>" if maps else "",
        _figures([pictures[key] for key in ("map", "free_energy_slices") if key in pictures]),
    ]
    if drawn_tree is not None and script:
        sections += [
            "<h3>Tree</h3>",
            f"<p>{html.escape(drawn_tree.caption)}</p>",
            f'<div class="wide">{tree_svg(found.track.tree, script["epochs"][-1]["number"])}</div>',
        ]
    sections += ["<h2>What the machine has learnt</h2>", _figures(_learnt(found))]
    sections += ["<h2>Settings</h2>", _table(_given(found.settings))]
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
<p id="help" class="small">Data in grey, solutions coloured by the rank of their free energy (dark is low), larger where
more starts lead to them. Point at one to see it, click to pin it, or to unpin it. With the keyboard: Tab to the map,
arrow keys from one to the next, Enter to pin, Escape to unpin the last.</p>
<div id="pinned" class="cards" role="group" aria-label="Pinned solutions"></div>
</div>"""


def _facts(found: Findings) -> str:
    last = found.track.snapshots[-1]
    stable = int(last.stable.sum())
    failed = f"; {last.n_not_converged} starts did not converge" if last.n_not_converged else ""
    count = f"{last.n_solutions}, {stable} of them stable, from {len(last.basin)} rows of the data{failed}"
    epoch = [("epoch", str(last.epoch))] if found.records else []  # a machine by itself has none
    facts = [("machine", found.machine.summary()), *epoch, ("TAP solutions", count)]
    return _table(facts)


def _likelihoods(found: Findings) -> str:
    """The table of all estimators."""
    heads = ("estimator", "training data", "±", "held-out data", "±", "rows", "ln Z", "±")
    rows = [
        (r.estimator, r.train, r.train_error, r.test, r.test_error, r.n_rows, r.log_partition, r.log_partition_error)
        for r in found.likelihoods.rows
    ]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    note = "<p class=small>The pseudo-likelihood is no estimate of ln P(x): compare it between machines only.</p>"
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{body}</table></div>{note}' + _list(
        found.likelihoods.warnings
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3f}"
    return html.escape(str(value))


def _learnt(found: Findings) -> list[Picture]:
    pictures = [fields_picture(ranking, found.image_shape) for ranking in found.rankings]
    if found.rows.dim() > 2:  # states of categorical units, which are shown on the map
        return pictures
    chains = f"Samples: Gibbs chains, {SAMPLE_SWEEPS} sweeps after rows of the data."
    return [
        *pictures,
        Picture(_drawn(found.samples, found.image_shape), chains),
        Picture(_drawn(found.rows, found.image_shape), "Those rows of the data."),
    ]


def _curves(found: Findings) -> Picture:
    figure = new_figure(4.5, 4.5)
    names = ("log_likelihood", "validation_log_likelihood", "tap_log_likelihood")
    training_curves(figure.subplots(), found.records, names)
    methods = {record["log_likelihood_method"] for record in found.records if record.get("log_likelihood_method")}
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
    return files("tapmachine.report").joinpath(name).read_text(encoding="utf-8")
