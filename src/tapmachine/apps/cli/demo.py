"""tapmachine demo"""

from pathlib import Path
from typing import Annotated

import typer

from tapmachine.apps.cli.common import Device, Quiet, app, speaker, warnings_as_lines


@app.command(epilog="Example:  tapmachine demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder.")] = Path("demo"),
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train on the embedded digits in about a minute, clean noisy ones, and write a page about it."""
    from tapmachine.apps.demo import FLIPPED, run_demo
    from tapmachine.runs.build import pick_device

    with warnings_as_lines(quiet):
        found = run_demo(out, pick_device(device), progress=not quiet, say=speaker(quiet))
    last = found.last
    if not quiet:
        print(f"log-likelihood     {last['log_likelihood']:.2f} nats per digit ({last['log_likelihood_method']})")
        print(f"                   {last['validation_log_likelihood']:.2f} on held-out digits")
        print(f"solutions          {last['n_unique']:.0f}, from 100 digits")
        print(
            f"noisy digits       {found.wrong_before:.1%} of the pixels wrong, {found.wrong_after:.1%} after cleaning"
        )
        print(f"                   ({FLIPPED:.0%} flipped at random; {found.picture})")
    print(found.page)
