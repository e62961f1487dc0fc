"""Command `tapmachine landscape`, which finds the TAP solutions of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.common import Data, Device, Quiet, Run, check_word, command, speaker
from tapmachine.data.declarations import from_text

if TYPE_CHECKING:
    from torch import Tensor

    from tapmachine.analysis.landscape.tracking import Snapshot
    from tapmachine.machine import BoltzmannMachine
    from tapmachine.solver.starts import StartingPoint

STARTS = ("data", "noisy", "random")
NOISE = 0.1  # fraction of the values that are replaced in noisy starting points
LINE = "{:>8}{:>11}{:>9}{:>15}{:>12}{:>12}"
HEADER = LINE.format("epoch", "solutions", "stable", "not converged", "mean F", "lowest F")


@command("tapmachine landscape runs/d --starts 1000")
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
    from tapmachine.accelerator.distributed import leads, pick_device, together
    from tapmachine.analysis.landscape import diagnose, track_landscape
    from tapmachine.analysis.landscape.embedding import embed_over_starts
    from tapmachine.analysis.landscape.output import landscape_files
    from tapmachine.analysis.receptive import rank_all_fields
    from tapmachine.machine.checks import check_rows
    from tapmachine.machine.files import write_atomically
    from tapmachine.runs.data import named
    from tapmachine.runs.session import Session
    from tapmachine.solver.validity import check_mean_field

    check_word("from", start_from, STARTS)
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
            _starts(start_from, machine, rows.train, starts),
            epochs=chosen,
            n_starts=starts,
            same=same,
            callback=lambda snapshot: say(_line(snapshot)),
        )
        if not leads():
            return
        speaker(quiet)("drawing figures …")
        rankings = rank_all_fields(machine, rows.train.to(machine.device))
        files = landscape_files(track, embed_over_starts(track), rankings, rows.image_shape)
    for name, content in files.items():
        write_atomically(out / name, content)
    last = track.snapshots[-1]
    if not quiet:
        print(f"At epoch {last.epoch}:", *diagnose(last, machine, rows.train, rows.held_out), sep="\n")
        print(f"{out}: {', '.join(files)}")


def _starts(kind: str, machine: "BoltzmannMachine", rows: "Tensor", count: int) -> "StartingPoint":
    """Create starting points: all rows of the data, `count` noisy rows or `count` random points."""
    from tapmachine.data.rows import spaced
    from tapmachine.solver import noisy_start, random_start

    if kind == "noisy":
        return noisy_start(machine, spaced(rows, count), NOISE)
    return random_start(machine, count) if kind == "random" else rows


def _line(snapshot: "Snapshot") -> str:
    """Format the results of one epoch as a table line below `HEADER`."""
    energies = (snapshot.mean_free_energy, float(snapshot.free_energy[0])) if snapshot.n_solutions else ()
    counts = (snapshot.epoch, snapshot.n_solutions, int(snapshot.stable.sum()), snapshot.n_not_converged)
    return LINE.format(*counts, *(f"{value:.2f}" for value in energies), *["–"] * (2 - len(energies)))
