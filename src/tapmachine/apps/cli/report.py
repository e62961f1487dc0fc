"""Command `tapmachine report`, which writes a report page on a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, Run, command, open_session, speaker


@command("tapmachine report runs/d")
def report(
    run: Run,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Row labels, shown as colors: a .npy or .csv file with one label per row (default: built-in labels, "
            "if any).",
        ),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of data rows used as starting points.")] = 500,
    data: Data = None,
    title: Annotated[str | None, typer.Option(help="Title of the page (default: the name of the run).")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file (default: report.html in the run directory, or FILE.html).",
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a self-contained HTML report on a machine.

    The page shows a map of the TAP solutions, samples, receptive fields or
    columns, and log-likelihoods.
    """
    from tapmachine.apps.report import Options, write_report

    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise ValueError(f"{out}: expected an .html output file, such as report.html")
    words = [str(run), *(["--labels", labels] if labels else []), *(["--data", data] if data else [])]
    options = Options(starts, data, labels, title, f"tapmachine report {shlex.join(words)}")
    path = write_report(open_session(run, device), options, say=speaker(quiet), out=out).path
    if not quiet:
        print(path)
