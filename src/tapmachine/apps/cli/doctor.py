"""Command `tapmachine doctor`, which checks the installation and run directories."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import BAD_INPUT, AsJson, app


@app.command(epilog="Example:  tapmachine doctor runs/d")
def doctor(
    run: Annotated[Path | None, typer.Argument(help="Run directory to check.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation (packages, devices, compilers, disk space) and, optionally, a run directory."""
    from tapmachine.apps.doctor import check_installation, check_run

    findings = check_installation(Path("."))
    findings += [] if run is None else check_run(run)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        for verdict, words in findings:
            print(f"{verdict:8}{' '.join(words.split())}")
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(BAD_INPUT)
