"""Command `tapmachine report`, which writes a report page on one or more runs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, command, open_session, speaker


@command("tapmachine report runs/d;  two side by side:  tapmachine report runs/a runs/b")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run directories or machine files. Several runs are compared side by side.", show_default=False
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            help="Row labels, shown as colors: a .npy or .csv file with one label per row (default: built-in labels, "
            "if any).",
        ),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of data rows used as starting points.")] = 500,
    data: Data = None,
    title: Annotated[str | None, typer.Option(help="Title of the page (default: the names of the runs).")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file (default: report.html in the first run directory, or FILE.html).",
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a self-contained HTML report on one or more machines.

    The page shows a map of the TAP solutions, samples, receptive fields or
    columns, and log-likelihoods.
    """
    from tapmachine.apps.report import Options, write_report

    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise ValueError(f"{out}: expected an .html output file, such as report.html")
    words = [*map(str, runs), *(["--labels", labels] if labels else []), *(["--data", data] if data else [])]
    options = Options(starts, data, labels, title, f"tapmachine report {shlex.join(words)}")
    sessions = [open_session(run, device) for run in runs]
    path = write_report(*sessions, options=options, say=speaker(quiet), out=out).path
    if not quiet:
        print(path)
