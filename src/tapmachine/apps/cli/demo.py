"""Command `tapmachine demo`, which trains on digits and writes a report."""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Device, Quiet, app, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory to create.")] = Path("demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on scikit-learn's digits in less than a minute, denoise held-out digits and write a report."""
    from tapmachine.apps.demo import SETTINGS, run_demo
    from tapmachine.runs.build import pick_device

    say = speaker(quiet)
    say(f"Training {SETTINGS.hidden[0]} hidden units on 8×8 digits for {SETTINGS.epochs} epochs …")
    with warnings_as_lines(quiet=True):  # the page shows the warnings
        found = run_demo(out, pick_device(device), progress=not quiet, say=say)
    if not quiet:
        stable, last = int(found.landscape.stable.sum()), found.last
        train, held_out = last["log_likelihood"], last["validation_log_likelihood"]
        print(f"log-likelihood  {train:.1f} nats per training digit, {held_out:.1f} nats per held-out digit")
        print(f"landscape       {stable} stable TAP solutions from {len(found.landscape.basin)} digits")
        print(f"denoising       {found.wrong_before:.1%} of the pixels wrong before, {found.wrong_after:.1%} after")
        print("Open the report in a browser:")
    print(found.page)
