"""tapmachine landscape: the solutions of a run's machines"""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.cli.common import Device, Quiet, Run, app, numbers, open_run, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine landscape runs/d --starts 1000")
def landscape(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="Rows of the data to start from, no more than that.")] = 1000,
    epochs: Annotated[str | None, typer.Option(help="Which, such as 1,5,20; all that were kept, unless given.")] = None,
    same: Annotated[float, typer.Option(help="Solutions closer than this (RMS over units) are one.")] = 1e-3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A folder; RUN/landscape, unless given.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the solutions of a run's machines, epoch by epoch; write tables, figures and their tree."""
    from tapmachine.files import data_description, write_atomically
    from tapmachine.landscape import embed, rank_fields, track
    from tapmachine.landscape.figures import (
        epochs_table,
        fields_picture,
        landscape_pictures,
        solutions_table,
        starts_table,
    )
    from tapmachine.landscape.tracking import Snapshot
    from tapmachine.plots import new_figure
    from tapmachine.recipes import pick_device
    from tapmachine.training_runs import read_data_of

    new_figure(1, 1)  # says so at once, if there is nothing to draw with
    where = pick_device(device)
    folder, machine = open_run(run, where)
    say = speaker(quiet)
    line = "{:>8}{:>11}{:>9}{:>15}{:>12}{:>12}"
    if not quiet:
        print(line.format("epoch", "solutions", "stable", "not converged", "mean F", "lowest F"))

    def tell(found: Snapshot) -> None:
        if not quiet:
            lowest = f"{float(found.free_energy[0]):.2f}" if found.n_solutions else "–"
            counts = (found.epoch, found.n_solutions, int(found.stable.sum()), found.n_not_converged)
            print(line.format(*counts, f"{found.mean_free_energy:.2f}", lowest), flush=True)

    with warnings_as_lines(quiet):
        chosen = [int(epoch) for epoch in numbers("epochs", epochs, int) or ()] or None
        data = read_data_of(folder).train
        found = track(folder, data, epochs=chosen, n_starts=starts, same=same, device=where, callback=tell)
        say("drawing …")
        embedding = embed(found, found.starts) if len(found.starts) >= 4 else None
        shape = data_description(folder.machine_path).get("image_shape")
        pictures = landscape_pictures(found, embedding, shape)
        if not machine.is_pairwise:
            pictures["receptive_fields"] = fields_picture(rank_fields(machine, data.to(machine.device)), shape)
    out = out or run / "landscape"
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "epochs": epochs_table(found),
        "solutions": solutions_table(found, embedding),
        "starts": starts_table(found),
    }
    for name, text in tables.items():
        write_atomically(out / f"{name}.csv", text.encode())
    write_atomically(out / "tree.nwk", (found.tree.newick() + "\n").encode())
    for name, picture in pictures.items():
        picture.figure.savefig(out / f"{name}.png", dpi=120)
    if not quiet:
        for sentence in found.snapshots[-1].words():
            print(sentence)
        print(f"{out}: {', '.join([*(f'{name}.csv' for name in tables), 'tree.nwk', *(f'{n}.png' for n in pictures)])}")
