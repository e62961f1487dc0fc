"""The scripts of the gallery run, say how long they take, and have a picture."""

import re
import runpy
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from marks import drifting_tap

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from gallery import SCRIPTS, data_file, seconds_stated  # noqa: E402

DATA = ROOT.parent / "shared" / "data"  # not part of the project
QUICK = {"denoising", "exchange_rbms", "hopfield", "inpainting", "recovery"}  # all others are slow


def cases() -> list:
    return [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in SCRIPTS]


@drifting_tap
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of torch, which matplotlib asks for arrays
@pytest.mark.parametrize("script", cases())
def test_script(script, tmp_path, monkeypatch):
    name = data_file(script)
    if name is not None and not (DATA / name).is_file():
        pytest.skip(f"{name} is not here")
    pytest.importorskip("h5py")
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)] if name is None else [str(script), str(DATA / name)])
    matplotlib.use("Agg")
    runpy.run_path(str(script), run_name="__main__")
    plt.close("all")
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 3_000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_how_long_it_takes_and_has_a_picture(script):
    assert 1 <= seconds_stated(script) <= 600
    assert (ROOT / "docs" / "images" / "gallery" / f"{script.stem}.png").is_file()
    assert re.search(rf'savefig\("{script.stem}\.png"', script.read_text())
