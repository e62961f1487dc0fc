"""What docs/how_to_extend.md adds to the package works: a unit type, a channel, an option and a command, in a copy."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapmachine

PAGE = Path(__file__).parents[1] / "docs" / "how_to_extend.md"
BLOCKS = re.findall(r"```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)


def class_of(name):
    """The block with a class, up to its end, without the example after it."""
    block = next(block for block in BLOCKS if f"class {name}(" in block)
    return block.partition("\n\n\nmachine = ")[0] + "\n"


def add_lines(root):
    """Insert the lines of each block that begins with a path, after the start of what the path names."""
    count = 0
    for block in BLOCKS:
        place = re.match(r"# src/(\S+): (.+)\n", block)
        if place:
            path, lines = root / place[1], block[place.end() :]
            text = path.read_text()
            start = next(line for line in text.splitlines(keepends=True) if line.lstrip().startswith(place[2]))
            path.write_text(text.replace(start, start + lines, 1))
            count += 1
    return count


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(Path(tapmachine.__file__).parent, root / "tapmachine", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tapmachine/units/ternary.py").write_text(class_of("Ternary"))
    (root / "tapmachine/posterior/channels/one_sided.py").write_text(class_of("OneSided"))
    command = next(block for block in BLOCKS if "def sizes(" in block)
    (root / "tapmachine/apps/cli/sizes.py").write_text(command)
    assert add_lines(root) == 6
    rng = np.random.default_rng(0)
    np.save(root / "ternary.npy", rng.integers(-1, 2, (60, 6)).astype(float))
    np.save(root / "bits.npy", rng.integers(0, 2, (60, 6)).astype(float))
    return root


def run(root, *arguments):
    how = {"cwd": root, "env": {"PYTHONPATH": str(root)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *arguments], **how, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import numpy as np
from tapmachine import RBM, load, save
from tapmachine.units import Ternary
model = RBM(n_hidden=3, visible="ternary", hidden_units="ternary", epochs=2).fit(np.load("ternary.npy"))
save(model, "machine.safetensors")
print([type(units) is Ternary for units in load("machine.safetensors").layers])
"""
CLIP = """
import torch
from tapmachine import Binary, fit, rbm
x = torch.eye(4).repeat(10, 1)
for clip_norm in (None, 1e-9):
    machine = rbm(Binary(4), Binary(2))
    before = machine.weights[0].detach().clone()
    fit(machine, x, epochs=2, batch_size=20, weight_decay=0.0, clip_norm=clip_norm)
    print(bool((machine.weights[0] - before).abs().max() < 1e-7))
"""


@pytest.mark.long
def test_a_unit_type_of_the_page(extended):
    assert run(extended, "-c", USE) == "[True, True]\n"
    words = ["train", "ternary.npy", "--visible", "ternary", "--hidden", "3", "--epochs", "1", "--out", "t"]
    run(extended, "-m", "tapmachine", *words)
    assert "60 rows" in run(extended, "-m", "tapmachine", "impute", "t", "ternary.npy", "--out", "filled.npy")
    assert run(extended, "-m", "tapmachine", "sizes", "t") == "6 3\n"


@pytest.mark.long
def test_an_option_of_the_page(extended):
    assert run(extended, "-c", CLIP) == "False\nTrue\n"


@pytest.mark.long
def test_a_channel_of_the_page(extended):
    command = ("-m", "tapmachine")
    run(extended, *command, "train", "bits.npy", "--hidden", "3", "--epochs", "1", "--out", "b")
    assert "Probability that a 1 is detected." in run(extended, *command, "denoise", "--help")
    arguments = ("denoise", "b", "bits.npy", "--channel", "one-sided", "--r", "0.7", "--out", "clean.npy")
    assert "channel one-sided (r=0.7)" in run(extended, *command, *arguments)
    assert (np.load(extended / "clean.npy")[np.load(extended / "bits.npy") == 1] > 0.99).all()
