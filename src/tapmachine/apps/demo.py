"""A first look: a machine trained on digits, what it has learned, and noisy digits that it cleans."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from tapmachine.analysis.plots import Picture, image_grid, new_figure
from tapmachine.apps.report import write_report
from tapmachine.machine.files import load
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import BinarySymmetric
from tapmachine.runs.data import read_data
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

SETTINGS = Settings("digits", validation=0.1, binarize=0.5, hidden=(64,), epochs=60, batch_size=50, measure_every=10)
FLIPPED = 0.1  # of the pixels
N_DIGITS = 12


class Demo(NamedTuple):
    """What the demo found.

    Attributes:
        page, picture: where they are.
        last: the record of the last epoch.
        wrong_before, wrong_after: the share of pixels that differ from the clean digits.
    """

    page: Path
    picture: Path
    last: dict[str, float]
    wrong_before: float
    wrong_after: float


def run_demo(
    folder: Path, device: str = "cpu", progress: bool | None = None, say: Callable[[str], None] = print
) -> Demo:
    """Trains on scikit-learn's digits in a run folder, cleans noisy digits and writes a page about it."""
    figure = new_figure(8, 2.4)
    run = run_training(SETTINGS, folder, device, progress, say)
    data = read_data(SETTINGS).in_memory()
    assert data.held_out is not None
    x = data.held_out.to(device)
    machine = load(RunFolder(folder).machine_path, device=device)
    channel = BinarySymmetric(FLIPPED)
    noisy = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
    clean = denoise(machine, noisy, channel, data=data.train).mean
    shown = torch.cat([rows[:N_DIGITS] for rows in (x, noisy, clean)])
    image_grid(figure.subplots(), shown, (8, 8), columns=N_DIGITS)
    picture = Path(folder) / "denoised.png"
    figure.savefig(picture, dpi=120)
    wrong = [float(((rows > 0.5).to(x) != x).double().mean()) for rows in (noisy, clean)]
    caption = (
        f"Held-out digits; with {FLIPPED:.0%} of the pixels flipped; and their posterior means given that, from TAP. "
        f"Of all pixels {wrong[0]:.1%} were wrong before, and {wrong[1]:.1%} after."
    )
    page = write_report(RunFolder(folder), device, [Picture(figure, caption)])
    return Demo(page, picture, run.records[-1], *wrong)
