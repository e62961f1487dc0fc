"""Figures at their printed size: letters, colors, and vector graphics."""

import re

import pytest
import torch
from matplotlib import rcParams, style
from matplotlib.colors import to_rgb

from reproduction import denoising, landscape
from reproduction.__main__ import DPI, FIGURES, save_figure
from reproduction.figure import COLUMN, PAGE, PAPER, hidden_color, shared_legend
from reproduction.lab import Lab
from reproduction.models import BINARY_100, BINARY_MODELS, REAL_100
from reproduction.tests.figure_cases import style_faults, titles_above
from tapmachine.display.figures import new_figure


@pytest.mark.parametrize("quick", [False, True])
def test_the_table_of_settings_can_be_read(tmp_path, quick):
    lab = Lab(tmp_path, quick)
    figure = FIGURES["params"].drawn(lab)
    figure.savefig(tmp_path / "params.png", dpi=DPI["png"])
    assert not style_faults(figure)
    lines = figure.texts[0].get_text().split("\n")
    assert len(lines) == 2 + 9
    assert len({*map(len, lines)}) == 1, "columns are aligned"


def test_claims_fit_into_their_columns(tmp_path):
    row = {"claim": "a claim " * 9, "verdict": "holds in part", "numbers": "binary-MNIST: 0.123 at epoch 100, " * 9}
    lab = Lab(tmp_path)
    lab.table("claims", lambda: [row, row])
    figure = FIGURES["claims"].drawn(lab)
    figure.savefig(tmp_path / "claims.png", dpi=DPI["png"])
    assert not style_faults(figure)
    text = figure.texts[0].get_text()
    assert text.count("binary-MNIST") == 18


def test_every_column_of_denoised_images_has_its_p(tmp_path):
    lab = Lab(tmp_path, quick=True)
    pixels = {f"p{n}": 0.5 for n in range(64)}
    names = ("noisy", "OPE", "8 hidden units")
    lab.table("bmnist-denoise-images", lambda: [{"p": p, "method": m} | pixels for p in denoising.NOISE for m in names])
    figure = FIGURES["bmnist-denoise-images"].drawn(lab)
    figure.savefig(tmp_path / "images.png", dpi=DPI["png"])
    assert not style_faults(figure)
    assert [text.get_text() for text in titles_above(figure)] == [f"$p$ = {p:g}" for p in denoising.NOISE]
    image = figure.axes[0].images[0]
    assert image.get_array()[0, 0] == 0.5  # not stretched
    assert image.cmap(0.0)[:3] == (1, 1, 1)  # 0 is white
    assert image.cmap(1.0)[:3] == (0, 0, 0)


def test_bars_and_curve_of_an_epoch_have_one_color(tmp_path):
    generator = torch.Generator().manual_seed(0)
    lab = Lab(tmp_path, only=frozenset({"binary-mnist-100", "real-mnist-100"}))
    values = {epoch: torch.randn(60, generator=generator).tolist() for epoch in (5, 20, 100)}
    for model in (BINARY_100, REAL_100):
        rows = [
            {"epoch": epoch, "free_energy": value, "unnormalized_free_energy": value, "starts": 3}
            for epoch, own in values.items()
            for value in own
        ]
        numbers = [{"epoch": e, "bands": 1, "bands_by_starts": 1, "prior_log_normalizer": 0.0} for e in values]
        for kind, own in (("solutions", rows), ("likelihood", numbers), ("overlaps", [{"epoch": 5}])):
            lab.out.mkdir(exist_ok=True)
            lab.table(f"{kind}-{model.name}", lambda own=own: own)
    figure = FIGURES["fedist"].drawn(lab)
    with style.context(PAPER):
        check_slices(figure, values)
    assert [row["solutions"] for row in landscape.bands(lab)] == [60] * 6


def check_slices(figure, values):
    slices = [ax for ax in figure.axes if ax.get_title(loc="right").startswith("epoch")]
    assert len(slices) == 6
    for ax in slices:
        bars = [patch for patch in ax.patches if patch.get_fill()]
        assert {bar.get_facecolor()[:3] for bar in bars} == {to_rgb(ax.lines[0].get_color())}
        # The axis is that of the epoch, not that of the whole training.
        low, high = ax.get_xlim()
        assert high - low < 3 * (max(values[5]) - min(values[5]))


def test_a_machine_has_one_color(tmp_path):
    """In all figures, and in both forms; the methods of one figure have different colors."""
    for quick in (False, True):
        lab = Lab(tmp_path, quick)
        colors = [hidden_color(lab, lab.model(model).hidden[0]) for model in BINARY_MODELS]
        assert len(set(colors)) == len(colors)
        for model, color in zip(BINARY_MODELS, colors, strict=True):
            assert denoising.style_of(lab, denoising.name_of(lab, model))["color"] == color
    assert [hidden_color(Lab(tmp_path), n) for n in (25, 500)] == [
        hidden_color(Lab(tmp_path, True), n) for n in (8, 32)
    ]


def test_vector_graphics_keep_text_and_rasterize_points(tmp_path):
    lab = Lab(tmp_path)
    points = torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)).tolist()
    lab.table("solnvis", lambda: [{"epoch": 5.0, "x": x, "y": y, "free_energy": f} for x, y, f in points])
    path = save_figure(lab, "solnvis", ("svg", "pdf", "png"))
    drawing = path.read_text()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert any("3000 solutions" in word for word in words), words
    assert "<image" in drawing
    assert drawing.count("<use") < 200, "the points are drawn one by one"
    assert b"/FontFile2" in path.with_suffix(".pdf").read_bytes()  # TrueType, which editors of PDF files can change
    width = int.from_bytes(path.with_suffix(".png").read_bytes()[16:20], "big")
    assert width == pytest.approx(200 * COLUMN, abs=1)


def test_the_style_is_not_left_behind():
    before = dict(rcParams)
    with style.context(PAPER):
        new_figure(1, 1)
    assert dict(rcParams) == before


def test_legends_fit_into_the_figure(tmp_path):
    with style.context(PAPER):
        figure = new_figure(PAGE, 2)
        ax = figure.subplots()
        for label in ("solutions", "mean", "distribution of solutions", "distribution, weighted by starts"):
            ax.plot([0, 1], label=label)
        shared_legend(figure, [ax])
        figure.savefig(tmp_path / "figure.png", dpi=DPI["png"])
    assert style_faults(figure) == []
