"""The demo, which trains a machine on digits with the TAP objective, denoises digits and writes a report page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tapmachine.analysis.landscape import Snapshot
from tapmachine.apps.report import Options, write_report
from tapmachine.apps.report.figures import Figure, image_svg
from tapmachine.machine.files import load
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import BinarySymmetric
from tapmachine.runs.data import read_data
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

SETTINGS = Settings(
    "digits", validation=0.1, binarize=0.5, objective="tap", hidden=(64,), epochs=40, batch_size=50, measure_every=10,
)  # fmt: skip
FLIPPED = 0.1  # fraction of the pixels that are flipped
N_DIGITS = 12


class Demo(NamedTuple):
    """Results of the demo.

    Attributes:
        page: Path to the report page.
        last: Training record of the last epoch.
        landscape: TAP solutions of the trained machine.
        wrong_before, wrong_after: Fraction of wrong pixels before and after denoising.
    """

    page: Path
    last: dict[str, Any]
    landscape: Snapshot
    wrong_before: float
    wrong_after: float


def run_demo(
    folder: Path, device: str = "cpu", progress: bool | None = None, say: Callable[[str], None] = print
) -> Demo:
    """Train a machine on scikit-learn's digits, denoise held-out digits and write a report page.

    Args:
        folder: Path to the run directory.
        device: Device to compute on (default: cpu).
        progress: Whether to show training progress (default: only in a terminal or a notebook).
        say: Callback that receives progress messages (default: print).
    """
    run = run_training(SETTINGS, folder, device, progress)
    data = read_data(SETTINGS).in_memory()
    assert data.held_out is not None
    x = data.held_out.to(device)
    machine = load(RunFolder(folder).machine_path, device=device)
    channel = BinarySymmetric(FLIPPED)
    noisy = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
    clean = denoise(machine, noisy, channel, data=data.train).mean
    before, after = (float(((rows > 0.5).to(x) != x).double().mean()) for rows in (noisy, clean))
    shown = torch.cat([rows[:N_DIGITS] for rows in (x, noisy, clean)])
    caption = (
        f"Held-out digits (top), the same digits with {FLIPPED:.0%} of the pixels flipped at random (middle), and "
        f"the posterior means by TAP (bottom). Over {len(x)} digits, {before:.1%} of the pixels were wrong before "
        f"denoising and {after:.1%} after."
    )
    svg = image_svg(shown, (8, 8), caption, N_DIGITS, names=("original", "noisy", "denoised"))
    options = Options(device=device, title="Handwritten digits", command=f"tapmachine demo --out {folder}")
    found = write_report(RunFolder(folder), options=options, more=[Figure(svg, caption, "denoised")], say=say)
    landscape = found.findings[0].landscape
    assert landscape is not None
    return Demo(found.path, run.records[-1], landscape.track.snapshots[-1], before, after)
