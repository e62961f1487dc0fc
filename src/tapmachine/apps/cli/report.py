"""tapmachine report: a page about runs"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, app, open_run, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine report runs/d;  two side by side:  tapmachine report runs/a runs/b")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders or machine files; several are compared.", show_default=False),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels for colors: a .npy or .csv file with one label per row.",
            show_default="built in for digits and mnist",
        ),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of data rows to solve from.")] = 500,
    data: Data = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="the names of the runs")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="HTML file to write.",
            show_default="report.html in the first run folder, or FILE.html",
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a self-contained HTML report on one or more machines: map of solutions, samples, columns, scores."""
    from tapmachine.apps.report import Options, write_report
    from tapmachine.runs.build import pick_device

    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise ValueError(f"{out}: expected an .html file, such as report.html")
    folders = [open_run(run)[0] for run in runs]
    words = [*map(str, runs), *(["--labels", labels] if labels else []), *(["--data", data] if data else [])]
    options = Options(pick_device(device), starts, data, labels, title, f"tapmachine report {shlex.join(words)}")
    with warnings_as_lines(quiet):
        path = write_report(*folders, options=options, say=speaker(quiet), out=out).path
    if not quiet:
        print(path)
