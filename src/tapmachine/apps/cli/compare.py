"""Command `tapmachine compare`, which compares mean-field approximations on a machine."""

import json
from typing import Annotated

import typer

from tapmachine.apps.cli.common import AsJson, Data, Device, Quiet, Run, app, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine compare runs/d --starts 20")
def compare(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="Number of data rows used as starting points.")] = 20,
    data: Data = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare mean-field approximations on a machine.

    The table shows free energy, errors of means and correlations,
    convergence and time.
    """
    from tapmachine.accelerator.devices import pick_device
    from tapmachine.analysis.schemes import compare_schemes
    from tapmachine.data.rows import spaced
    from tapmachine.machine.checks import check_rows
    from tapmachine.machine.whitening import check_mean_field
    from tapmachine.runs.session import Session

    session = Session(run, pick_device(device))
    machine = session.machine
    check_mean_field(machine)
    with warnings_as_lines(quiet):
        rows = check_rows(machine, spaced(session.data(data).train, starts).to(machine.device))
    say = speaker(quiet or as_json)
    with warnings_as_lines(quiet):
        found = compare_schemes(machine, rows, callback=lambda name: say(f"{name} …"))
    if as_json:
        table = [{name: None if value != value else value for name, value in row.items()} for row in found.as_dicts()]
        print(json.dumps({"reference": found.reference, "schemes": table}))
        return
    print(found.table())
