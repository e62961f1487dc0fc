"""tapmachine landscape: the solutions of a run's machines"""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.cli.common import Data, Device, Quiet, Run, app, numbers, open_run, speaker, warnings_as_lines

NOISE = 0.1  # the share of values that are replaced in noisy starts


@app.command(epilog="Example:  tapmachine landscape runs/d --starts 1000")
def landscape(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="Maximum number of starting points.")] = 1000,
    start_from: Annotated[
        str,
        typer.Option(
            "--from", help="Starting points: data, noisy (data with a tenth of the values replaced), or random."
        ),
    ] = "data",
    epochs: Annotated[
        str | None, typer.Option(help="Epochs to look at, such as 1,5,20.", show_default="all that were kept")
    ] = None,
    same: Annotated[
        float, typer.Option(help="Distance (RMS over units) below which two solutions are the same.")
    ] = 1e-3,
    data: Data = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Output folder.", show_default="landscape in the run folder; FILE-landscape for a file"
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the TAP solutions of a run's machines, epoch by epoch; write tables, figures and their tree."""
    import io

    from tapmachine.distributed import leads, together
    from tapmachine.files import write_atomically
    from tapmachine.inference import noisy_start, random_start
    from tapmachine.inference.starts import Start
    from tapmachine.landscape import Snapshot, diagnose, track
    from tapmachine.landscape.embedding import embed_over_starts
    from tapmachine.landscape.fields import rank_all_fields
    from tapmachine.landscape.figures import (
        epochs_table,
        fields_picture,
        landscape_pictures,
        solutions_table,
        starts_table,
    )
    from tapmachine.landscape.tracking import KeptMachines
    from tapmachine.likelihood.score import spaced
    from tapmachine.plots import new_figure
    from tapmachine.recipes import pick_device
    from tapmachine.training_runs import data_for

    new_figure(1, 1)  # says so at once, if there is nothing to draw with
    if start_from not in ("data", "noisy", "random"):
        raise ValueError(f"--from is {start_from!r}; it must be one of data, noisy, random")
    chosen = [int(epoch) for epoch in numbers("epochs", epochs, int) or ()] or None
    folder, _ = open_run(run)
    out = out or (
        run / "landscape" if run.is_dir() else run.with_name(f"{run.stem}-landscape")
    )  # made before the work, should that not be possible
    out.mkdir(parents=True, exist_ok=True)
    quiet = quiet or not leads()
    with warnings_as_lines(quiet):
        found_data = data_for(folder, data)
    rows, shape = found_data.train, found_data.image_shape
    line = "{:>8}{:>11}{:>9}{:>15}{:>12}{:>12}"
    if not quiet:
        print(line.format("epoch", "solutions", "stable", "not converged", "mean F", "lowest F"))

    def tell(found: Snapshot) -> None:
        if not quiet:
            values = (found.mean_free_energy, float(found.free_energy[0])) if found.n_solutions else ()
            counts = (found.epoch, found.n_solutions, int(found.stable.sum()), found.n_not_converged)
            print(line.format(*counts, *(f"{value:.2f}" for value in values), *["–"] * (2 - len(values))), flush=True)

    with warnings_as_lines(quiet), together(pick_device(device)) as own:
        machines = KeptMachines(folder, own)
        machine = machines[max(machines)]
        begin: Start = rows
        if start_from == "noisy":
            begin = noisy_start(machine, spaced(rows, starts), NOISE)
        elif start_from == "random":
            begin = random_start(machine, starts)
        found = track(machines, begin, epochs=chosen, n_starts=starts, same=same, callback=tell)
        if not leads():
            return
        speaker(quiet)("drawing …")
        embedding = embed_over_starts(found)
        pictures = landscape_pictures(found, embedding, shape)
        for ranking in rank_all_fields(machine, rows.to(machine.device)):
            name = "receptive_fields" if ranking.layer == 1 else f"receptive_fields_{ranking.layer}"
            pictures[name] = fields_picture(ranking, shape)
    tables = {
        "epochs": epochs_table(found),
        "solutions": solutions_table(found, embedding),
        "starts": starts_table(found),
    }
    for name, text in tables.items():
        write_atomically(out / f"{name}.csv", text.encode())
    write_atomically(out / "tree.nwk", (found.tree.newick() + "\n").encode())
    for name, picture in pictures.items():
        content = io.BytesIO()
        picture.figure.savefig(content, format="png", dpi=120)
        write_atomically(out / f"{name}.png", content.getvalue())
    if not quiet:
        last = found.snapshots[-1]
        print(f"At epoch {last.epoch}:")
        for sentence in diagnose(last, machine, rows, found_data.held_out):
            print(sentence)
        print(f"{out}: {', '.join([*(f'{name}.csv' for name in tables), 'tree.nwk', *(f'{n}.png' for n in pictures)])}")
