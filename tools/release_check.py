"""Test an installed package as a user would use it.

Run `python release_check.py` outside of the repository, in an environment without the development tools.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import tapmachine
from tapmachine import RBM, Binary, BinarySymmetric, denoise, exact_log_likelihood, load, rbm, save, solve


def main() -> None:
    """Train, solve, score, denoise, save and load a machine; then run the command line."""
    assert "site-packages" in tapmachine.__file__, f"tapmachine is not installed: imported from {tapmachine.__file__}"
    assert importlib.metadata.version("tapmachine") == tapmachine.__version__
    x = np.repeat(np.eye(6), 30, 0)
    model = RBM(n_hidden=6, random_state=0).fit(x)
    independent = 6 * (np.log(1 / 6) / 6 + np.log(5 / 6) * 5 / 6)
    assert model.score(x) > independent, "the score is not better than that of independent units"
    assert solve(model.machine_, torch.tensor(x).float()).converged.all()
    assert denoise(model.machine_, torch.tensor(x).float(), BinarySymmetric(0.1)).mean.shape == (180, 6)
    machine = rbm(Binary(6), Binary(3))
    with tempfile.TemporaryDirectory() as folder:
        save(machine, Path(folder) / "machine.safetensors")
        again = load(Path(folder) / "machine.safetensors")
        rows = torch.tensor(x).float()
        same = exact_log_likelihood(machine, rows).values == exact_log_likelihood(again, rows).values
        assert same.all()
        command = [sys.executable, "-m", "tapmachine"]
        options = ["--binarize", "0.5", "--hidden", "8", "--epochs", "2", "--out", f"{folder}/run"]
        subprocess.run([*command, "train", "digits", *options], check=True)
        for words in (["info", f"{folder}/run"], ["doctor"]):
            subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
    print(f"tapmachine {tapmachine.__version__} passes the release check in {sys.prefix}")


if __name__ == "__main__":
    main()
