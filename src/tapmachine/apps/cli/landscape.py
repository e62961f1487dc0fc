"""Command `tapmachine landscape`, which finds the TAP solutions of a run."""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, Run, app, numbers, open_run, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine landscape runs/d --starts 1000")
def landscape(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of starting points.")] = 1000,
    start_from: Annotated[
        str,
        typer.Option("--from", help="Starting points: data, noisy (data with 10 % of the values replaced), or random."),
    ] = "data",
    epochs: Annotated[
        str | None, typer.Option(help="Epochs to analyze, such as 1,5,20 (default: all kept machines).")
    ] = None,
    same: Annotated[float, typer.Option(help="RMS distance below which two solutions count as one.")] = 1e-3,
    data: Data = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Output directory (default: landscape in the run directory, or FILE-landscape)."
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the TAP solutions of a run's machine at each kept epoch.

    The output directory contains tables, figures and the tree of solutions.
    """
    from tapmachine.accelerator.distributed import leads, together
    from tapmachine.analysis.landscape import diagnose, track_landscape
    from tapmachine.analysis.landscape.embedding import embed_over_starts
    from tapmachine.analysis.plots import new_figure
    from tapmachine.apps.landscape import HEADER, STARTS, draw, make_files, make_starts, table_line, write_files
    from tapmachine.machine.checks import check_rows
    from tapmachine.machine.whitening import check_mean_field
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.data import data_for, named
    from tapmachine.runs.machines import KeptMachines

    new_figure(1, 1)  # fails early if Matplotlib is not installed
    if start_from not in STARTS:
        raise ValueError(f"--from is {start_from!r}; expected one of {', '.join(STARTS)}")
    chosen = [int(epoch) for epoch in numbers("epochs", epochs, int) or ()] or None
    folder, machine = open_run(run)
    check_mean_field(machine)
    out = out or (run / "landscape" if run.is_dir() else run.with_name(f"{run.stem}-landscape"))
    out.mkdir(parents=True, exist_ok=True)  # fails before the computation
    quiet = quiet or not leads()
    say = (lambda line: None) if quiet else (lambda line: print(line, flush=True))
    with warnings_as_lines(quiet):
        rows_of_run = data_for(folder, data)
    train = rows_of_run.train
    with warnings_as_lines(quiet), together(pick_device(device)) as device_of_process:
        machines = KeptMachines(folder, device_of_process)
        machine = machines[max(machines)]
        with named(data or str(run)):
            check_rows(machine, train)  # before the computation
        say(HEADER)
        track = track_landscape(
            machines,
            make_starts(start_from, machine, train, starts),
            epochs=chosen,
            n_starts=starts,
            same=same,
            callback=lambda snapshot: say(table_line(snapshot)),
        )
        if not leads():
            return
        speaker(quiet)("drawing figures …")
        embedding = embed_over_starts(track)
        pictures = draw(track, embedding, machine, train, rows_of_run.image_shape)
    files = make_files(track, embedding, pictures)
    write_files(out, files)
    last = track.snapshots[-1]
    if not quiet:
        print(f"At epoch {last.epoch}:", *diagnose(last, machine, train, rows_of_run.held_out), sep="\n")
        print(f"{out}: {', '.join(files)}")
