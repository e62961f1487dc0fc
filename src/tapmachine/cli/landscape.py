"""tapmachine landscape: the solutions of a run's machines"""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.cli.common import Device, Quiet, Run, app, numbers, open_run, speaker, warnings_as_lines

NOISE = 0.1  # the share of values that are replaced in noisy starts


@app.command(epilog="Example:  tapmachine landscape runs/d --starts 1000")
def landscape(
    run: Run,
    starts: Annotated[int, typer.Option(min=1, help="How many, no more than that.")] = 1000,
    start_from: Annotated[
        str, typer.Option("--from", help="data; noisy, data with a tenth of the values replaced; or random.")
    ] = "data",
    epochs: Annotated[str | None, typer.Option(help="Which, such as 1,5,20; all that were kept, unless given.")] = None,
    same: Annotated[float, typer.Option(help="Solutions closer than this (RMS over units) are one.")] = 1e-3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A folder; RUN/landscape, unless given.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find the solutions of a run's machines, epoch by epoch; write tables, figures and their tree."""
    import io

    from tapmachine.distributed import leads, together
    from tapmachine.files import data_description, write_atomically
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
    from tapmachine.training_runs import read_data_of

    new_figure(1, 1)  # says so at once, if there is nothing to draw with
    if start_from not in ("data", "noisy", "random"):
        raise ValueError(f"--from is {start_from!r}; it must be one of data, noisy, random")
    chosen = [int(epoch) for epoch in numbers("epochs", epochs, int) or ()] or None
    folder, _ = open_run(run)
    out = out or run / "landscape"  # made before the work, should that not be possible
    out.mkdir(parents=True, exist_ok=True)
    quiet = quiet or not leads()
    with warnings_as_lines(quiet):
        read = read_data_of(folder)
    data = read.train
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
        begin: Start = data
        if start_from == "noisy":
            begin = noisy_start(machine, spaced(data, starts), NOISE)
        elif start_from == "random":
            begin = random_start(machine, starts)
        found = track(machines, begin, epochs=chosen, n_starts=starts, same=same, callback=tell)
        if not leads():
            return
        speaker(quiet)("drawing …")
        embedding = embed_over_starts(found)
        shape = data_description(folder.machine_path).get("image_shape")
        pictures = landscape_pictures(found, embedding, shape)
        for ranking in rank_all_fields(machine, data.to(machine.device)):
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
        for sentence in diagnose(last, machine, data, read.held_out):
            print(sentence)
        print(f"{out}: {', '.join([*(f'{name}.csv' for name in tables), 'tree.nwk', *(f'{n}.png' for n in pictures)])}")
