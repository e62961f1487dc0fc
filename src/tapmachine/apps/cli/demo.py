"""Command `tapmachine demo`, which trains on digits, denoises digits and writes a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapmachine.apps.cli.common import Device, Quiet, command, speaker, warnings_as_lines
from tapmachine.runs.settings import Settings

if TYPE_CHECKING:
    from tapmachine.apps.report.figures import Figure
    from tapmachine.runs.session import Session

SETTINGS = Settings(
    "digits", validation=0.1, binarize=0.5, objective="tap", hidden=(64,), epochs=40, batch_size=50, measure_every=10,
)  # fmt: skip
FLIPPED = 0.1  # fraction of the pixels that are flipped
N_DIGITS = 12


@command("tapmachine demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory to create.")] = Path("demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on scikit-learn's digits in less than a minute, denoise held-out digits and write a report."""
    from tapmachine.accelerator.devices import pick_device
    from tapmachine.apps.report import Options, write_report
    from tapmachine.runs.session import Session
    from tapmachine.runs.training import run_training

    say = speaker(quiet)
    say(f"Training {SETTINGS.hidden[0]} hidden units on 8×8 digits for {SETTINGS.epochs} epochs …")
    with warnings_as_lines(quiet=True):  # the page shows the warnings
        last = run_training(SETTINGS, out, pick_device(device), progress=not quiet).records[-1]
        session = Session(out, pick_device(device))
        figure, denoised = _denoised(session)
        options = Options(title="Handwritten digits", command=f"tapmachine demo --out {out}")
        page, runs = write_report(session, options=options, more=[figure], say=say)
    solutions = runs[0].landscape
    if not quiet and solutions is not None:
        found = solutions.track.snapshots[-1]
        train, held_out = last["log_likelihood"], last["validation_log_likelihood"]
        print(f"log-likelihood  {train:.1f} nats per training digit, {held_out:.1f} nats per held-out digit")
        print(f"landscape       {int(found.stable.sum())} stable TAP solutions from {len(found.basin)} digits")
        print(f"denoising       {denoised}")
        print("Open the report in a browser:")
    print(page)


def _denoised(session: "Session") -> "tuple[Figure, str]":
    """Denoise the held-out digits. Returns a figure and the fractions of wrong pixels before and after."""
    from tapmachine.apps.report.figures import Figure
    from tapmachine.display.figures import svg
    from tapmachine.display.images import image_strips
    from tapmachine.posterior import denoise
    from tapmachine.posterior.channels import BinarySymmetric

    data, channel = session.data(), BinarySymmetric(FLIPPED)
    assert data.held_out is not None
    x = data.held_out.to(session.machine.device)
    noisy = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
    clean = denoise(session.machine, noisy, channel, data=data.train).mean
    before, after = (float(((rows > 0.5).to(x) != x).double().mean()) for rows in (noisy, clean))
    shown = {name: rows[:N_DIGITS] for name, rows in (("original", x), ("noisy", noisy), ("denoised", clean))}
    caption = (
        f"Held-out digits (top), the same digits with {FLIPPED:.0%} of the pixels flipped at random (middle), and "
        f"the posterior means by TAP (bottom). Over {len(x)} digits, {before:.1%} of the pixels were wrong before "
        f"denoising and {after:.1%} after."
    )
    drawn = svg(caption, image_strips, shown, (8, 8), None, "white", size=(560, 130))
    return Figure(drawn, caption, "denoised"), f"{before:.1%} of the pixels wrong before, {after:.1%} after"
