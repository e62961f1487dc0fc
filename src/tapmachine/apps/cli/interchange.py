"""Command `tapmachine convert`, which converts machine files."""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Quiet, command


@command("tapmachine convert rbm.h5 machine.safetensors")
def convert(
    source: Annotated[
        Path, typer.Argument(help="Input: a .safetensors or .h5 file, or a run directory.", show_default=False)
    ],
    target: Annotated[Path, typer.Argument(help="Output file: .safetensors or .h5.", show_default=False)],
    update: Annotated[
        int | None,
        typer.Option(
            help="Number of the update (training step) in an .h5 file (default: last when reading, 1 when writing).",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Convert a machine between .safetensors and the HDF5 formats of rbms and clusterbm."""
    from tapmachine.machine.files import data_description, load, save
    from tapmachine.machine.interchange import read_rbms, write_rbms
    from tapmachine.runs.folder import RunFolder

    hdf5 = (".h5", ".hdf5")
    if source.suffix in hdf5:
        machine = read_rbms(source, update)
    else:
        source = RunFolder(source).machine_path if source.is_dir() else source
        machine = load(source)
    if target.suffix in hdf5:
        write_rbms(machine, target, 1 if update is None else update)
    elif target.suffix == ".safetensors":
        save(machine, target, {} if source.suffix in hdf5 else data_description(source))
    else:
        raise ValueError(f"{target}: expected a .safetensors or .h5 output file")
    if not quiet:
        print(f"{target}: {machine.summary()}")
