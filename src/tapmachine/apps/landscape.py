"""Starting points, tables and figures of the command `tapmachine landscape`."""

import io
from pathlib import Path

from torch import Tensor

from tapmachine.analysis.landscape import Embedding, LandscapeTrack, Snapshot
from tapmachine.analysis.landscape.figures import (
    epochs_table,
    fields_picture,
    landscape_pictures,
    solutions_table,
    starts_table,
)
from tapmachine.analysis.plots import Picture
from tapmachine.analysis.receptive import rank_all_fields
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import write_atomically
from tapmachine.solver import noisy_start, random_start
from tapmachine.solver.starts import StartingPoint

STARTS = ("data", "noisy", "random")
NOISE = 0.1  # fraction of the values that are replaced in noisy starting points
LINE = "{:>8}{:>11}{:>9}{:>15}{:>12}{:>12}"
HEADER = LINE.format("epoch", "solutions", "stable", "not converged", "mean F", "lowest F")


def make_starts(kind: str, machine: BoltzmannMachine, rows: Tensor, count: int) -> StartingPoint:
    """Create starting points: all rows of the data, `count` noisy rows or `count` random points."""
    if kind == "noisy":
        return noisy_start(machine, spaced(rows, count), NOISE)
    return random_start(machine, count) if kind == "random" else rows


def table_line(snapshot: Snapshot) -> str:
    """Format the results of one epoch as a table line below `HEADER`."""
    energies = (snapshot.mean_free_energy, float(snapshot.free_energy[0])) if snapshot.n_solutions else ()
    counts = (snapshot.epoch, snapshot.n_solutions, int(snapshot.stable.sum()), snapshot.n_not_converged)
    return LINE.format(*counts, *(f"{value:.2f}" for value in energies), *["–"] * (2 - len(energies)))


def draw(
    track: LandscapeTrack,
    embedding: Embedding | None,
    machine: BoltzmannMachine,
    rows: Tensor,
    image_shape: tuple[int, int] | None,
) -> dict[str, Picture]:
    """Draw the landscape and the receptive fields of each hidden layer.

    Returns:
        A dictionary from file names, without suffix, to figures.
    """
    pictures = landscape_pictures(track, embedding, image_shape)
    for ranking in rank_all_fields(machine, rows.to(machine.device)):
        name = "receptive_fields" if ranking.layer == 1 else f"receptive_fields_{ranking.layer}"
        pictures[name] = fields_picture(ranking, image_shape)
    return pictures


def make_files(track: LandscapeTrack, embedding: Embedding | None, pictures: dict[str, Picture]) -> dict[str, bytes]:
    """Create the output files: tables, the tree of solutions and figures.

    Returns:
        A dictionary from file names to file contents.
    """
    files = {
        "epochs.csv": epochs_table(track).encode(),
        "solutions.csv": solutions_table(track, embedding).encode(),
        "starts.csv": starts_table(track).encode(),
        "tree.nwk": (track.tree.newick() + "\n").encode(),
    }
    for name, picture in pictures.items():
        content = io.BytesIO()
        picture.figure.savefig(content, format="png", dpi=120)
        files[f"{name}.png"] = content.getvalue()
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files to a directory. Each file is written atomically."""
    for name, content in files.items():
        write_atomically(folder / name, content)
