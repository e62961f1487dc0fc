"""Train on scikit-learn's digits in less than a minute, denoise held-out digits and write a report.

The machine is trained with the TAP objective, after which it has many solutions to explore on the page. The default
objective gives a higher log-likelihood, but usually few solutions.

Run it with `python examples/demo.py --out demo`, or `make demo`.
"""

import argparse
import warnings
from pathlib import Path

import torch

from tapmachine.accelerator.distributed import pick_device
from tapmachine.apps.report import Options, write_report
from tapmachine.apps.report.figures import Figure
from tapmachine.channels import BinarySymmetric
from tapmachine.display.figures import svg
from tapmachine.display.images import image_strips
from tapmachine.posterior import denoise
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

SETTINGS = Settings(
    "digits", validation=0.1, binarize=0.5, objective="tap", hidden=(64,), epochs=40, batch_size=50, measure_every=10,
)  # fmt: skip
FLIPPED = 0.1  # fraction of the pixels that are flipped
N_DIGITS = 12


def main(words: list[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="Train on digits, denoise digits and write a report.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="run directory to create")
    out = parser.parse_args(words).out
    print(f"Training {SETTINGS.hidden[0]} hidden units on 8×8 digits for {SETTINGS.epochs} epochs …")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page shows the warnings
        last = run_training(SETTINGS, out, pick_device("auto"), progress=True).records[-1]
        session = Session(out, pick_device("auto"))
        figure, wrong = denoised(session)
        options = Options(title="Handwritten digits", command=f"python examples/demo.py --out {out}")
        page, (results,) = write_report(session, options=options, more=[figure], say=print)
    train, held_out = last["log_likelihood"], last["validation_log_likelihood"]
    print(f"log-likelihood  {train:.1f} nats per training digit, {held_out:.1f} nats per held-out digit")
    if results.landscape is not None:
        found = results.landscape.track.snapshots[-1]
        print(f"landscape       {int(found.stable.sum())} stable TAP solutions from {len(found.basin)} digits")
    print(f"denoising       {wrong}")
    print("Open the report in a browser:")
    print(page)


def denoised(session: Session) -> tuple[Figure, str]:
    """Denoise the held-out digits. Returns a figure and the fractions of wrong pixels before and after."""
    data, channel = session.data(), BinarySymmetric(FLIPPED)
    assert data.held_out is not None
    x = data.held_out.to(session.machine.device)
    noisy = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
    clean = denoise(session.machine, noisy, channel, data=data.train).mean
    before, after = (float(((rows > 0.5).to(x) != x).double().mean()) for rows in (noisy, clean))
    shown = {name: rows[:N_DIGITS] for name, rows in (("original", x), ("noisy", noisy), ("denoised", clean))}
    # For comparison, the posterior of independent pixels with the means of the training data.
    mean = data.train.to(x).mean(0)
    on, off = (mean * p / (mean * p + (1 - mean) * (1 - p)) for p in (1 - FLIPPED, FLIPPED))
    alone = float(((torch.where(noisy > 0.5, on, off) > 0.5).to(x) != x).double().mean())
    caption = (
        f"Held-out digits (top), the same digits with {FLIPPED:.0%} of the pixels flipped at random (middle), and "
        f"the posterior means by TAP (bottom). Over {len(x)} digits, {before:.1%} of the pixels were wrong before "
        f"denoising and {after:.1%} after ({alone:.1%} with a model of independent pixels)."
    )
    drawn = svg(caption, image_strips, shown, (8, 8), None, "white", size=(560, 130))
    return Figure(drawn, caption, "denoised"), f"{before:.1%} of the pixels wrong before, {after:.1%} after"


if __name__ == "__main__":
    main()
