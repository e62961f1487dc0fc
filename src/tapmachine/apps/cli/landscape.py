"""Command `tapmachine landscape`, which finds the TAP solutions of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, Run, command
from tapmachine.data.declarations import from_text

if TYPE_CHECKING:
    from tapmachine.analysis.landscape.tracking import Snapshot

LINE = "{:>8}{:>11}{:>9}{:>15}{:>12}{:>12}"
HEADER = LINE.format("epoch", "solutions", "stable", "not converged", "mean F", "lowest F")


@command("tapmachine landscape runs/d --starts 1000")
def landscape(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of data rows used as starting points.")] = 1000,
    epochs: Annotated[
        str | None, typer.Option(help="Epochs to analyze, such as 1,5,20 (default: all kept machines).")
    ] = None,
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

    The output directory contains tables and the tree of solutions. For
    figures, use tapmachine report.
    """
    from tapmachine.accelerator.distributed import leads, pick_device, together
    from tapmachine.analysis.landscape import diagnose, track_landscape
    from tapmachine.analysis.landscape.embedding import embed_over_starts
    from tapmachine.analysis.landscape.output import landscape_files
    from tapmachine.data.files import write_atomically
    from tapmachine.machine.checks import check_rows
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session
    from tapmachine.solver.validity import check_mean_field

    chosen = from_text("--epochs", epochs, tuple[int, ...])
    out = out or (run / "landscape" if run.is_dir() else run.with_name(f"{run.stem}-landscape"))
    say = (lambda line: None) if quiet else (lambda line: print(line, flush=True))
    with together(pick_device(device)) as device_of_process:
        session = Session(run, device_of_process)
        machine = session.machine
        check_mean_field(machine)
        out.mkdir(parents=True, exist_ok=True)  # fails before the computation
        rows = session.data(data)
        with named(data or str(run)):
            check_rows(machine, rows.train)  # before the computation
        say(HEADER)
        track = track_landscape(
            session.machines,
            rows.train,
            epochs=chosen,
            n_starts=starts,
            callback=lambda snapshot: say(_line(snapshot)),
        )
        if not leads():
            return
        files = landscape_files(track, embed_over_starts(track))
    for name, content in files.items():
        write_atomically(out / name, content.encode())
    last = track.snapshots[-1]
    if not quiet:
        print(f"At epoch {last.epoch}:", *diagnose(last, machine, rows.train, rows.held_out), sep="\n")
        print(f"{out}: {', '.join(files)}")


def _line(snapshot: "Snapshot") -> str:
    """Format the results of one epoch as a table line below `HEADER`."""
    energies = (snapshot.mean_free_energy, float(snapshot.free_energy[0])) if snapshot.n_solutions else ()
    counts = (snapshot.epoch, snapshot.n_solutions, int(snapshot.stable.sum()), snapshot.n_not_converged)
    return LINE.format(*counts, *(f"{value:.2f}" for value in energies), *["–"] * (2 - len(energies)))
