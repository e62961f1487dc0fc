"""Figures at their printed size: letters, colors, and vector graphics."""

import re

import pytest
import torch
from figure_cases import style_faults, titles_above
from matplotlib.colors import to_rgb

from reproduction import claims, denoising, denoising_images, free_energy_bands, parameters, solution_maps
from reproduction.drawing import GUTTER, hidden_color, text_width
from reproduction.lab import DPI, Lab
from reproduction.models import BINARY_100, BINARY_MODELS, REAL_100
from reproduction.style import COLUMN, PAGE, PALETTE, figure_style, sequence, shared_legend
from tapmachine.display.figures import new_figure


@pytest.mark.parametrize("quick", [False, True])
def test_the_table_of_settings_can_be_read(tmp_path, quick):
    lab = Lab(tmp_path, quick)
    figure = parameters.draw(lab)
    lab.save_figure("params", figure)
    assert not style_faults(figure)
    boxes = [text.get_window_extent(dpi=200) for text in figure.axes[0].texts]
    assert len(boxes) == 11 * (1 + len(parameters.table(lab)))
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_claims_fit_into_their_columns(tmp_path):
    row = {"claim": "a claim " * 9, "verdict": "holds in part", "numbers": "binary-MNIST: 0.123 at epoch 100, " * 9}
    lab = Lab(tmp_path)
    lab.table("claims", lambda: [row, row])
    figure = claims.draw(lab)
    lab.save_figure("claims", figure)
    assert not style_faults(figure)
    widths = claims.WIDTHS[False]
    for cell, width in zip(row.values(), widths, strict=True):
        assert all(text_width(line) <= width - GUTTER for line in claims._wrapped(cell, width).split("\n"))
    boxes = [text.get_window_extent(dpi=200) for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_every_column_of_denoised_images_has_its_p(tmp_path):
    lab = Lab(tmp_path, quick=True)
    pixels = {f"p{n}": 0.5 for n in range(64)}
    names = ("noisy", "OPE", "8", "8, with examples")
    lab.table("bmnist-denoise-images", lambda: [{"p": p, "method": m} | pixels for p in denoising.NOISE for m in names])
    figure = denoising_images.draw(lab)
    lab.save_figure("bmnist-denoise-images", figure)
    assert not style_faults(figure)
    assert [text.get_text() for text in titles_above(figure)] == [f"$p$ = {p:g}" for p in denoising.NOISE]
    image = figure.axes[0].images[0]
    assert image.get_array()[0, 0] == 0.5  # not stretched
    assert image.cmap(0.0)[:3] == (1, 1, 1)  # 0 is white
    assert image.cmap(1.0)[:3] == (0, 0, 0)


def test_bars_and_curve_of_an_epoch_have_one_color():
    generator = torch.Generator().manual_seed(0)
    bands = {epoch: (torch.randn(60, generator=generator), torch.full((60,), 3)) for epoch in (5, 20, 100)}
    with figure_style():
        figure = free_energy_bands.drawn_bands(
            {BINARY_100: (100, {free_energy_bands.OURS: bands}), REAL_100: (100, {free_energy_bands.OURS: bands})}
        )
    slices = [ax for ax in figure.axes if ax.get_title(loc="right").startswith("epoch")]
    assert len(slices) == 6
    for ax in slices:
        bars = [patch for patch in ax.patches if patch.get_fill()]
        assert {bar.get_facecolor()[:3] for bar in bars} == {to_rgb(ax.lines[0].get_color())}
        # The axis is that of the epoch, not that of the whole training.
        low, high = ax.get_xlim()
        assert high - low < 3 * float(bands[5][0].max() - bands[5][0].min())


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
    assert len({*PALETTE}) == len(PALETTE)
    assert len({*sequence(5)}) == 5


def test_vector_graphics_keep_text_and_rasterize_points(tmp_path):
    lab = Lab(tmp_path)
    points = torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)).tolist()
    lab.table("solnvis", lambda: [{"epoch": 5.0, "x": x, "y": y, "free_energy": f} for x, y, f in points])
    figure = solution_maps.draw(lab)
    path = lab.save_figure("solnvis", figure, ("svg", "pdf", "png"))
    assert not style_faults(figure)
    drawing = path.read_text()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert any("3000 solutions" in word for word in words), words
    assert "<image" in drawing
    assert drawing.count("<use") < 200, "the points are drawn one by one"
    document = path.with_suffix(".pdf").read_bytes()
    assert b"/FontFile2" in document  # TrueType, which editors of PDF files can change
    width = int.from_bytes(path.with_suffix(".png").read_bytes()[16:20], "big")
    assert width == pytest.approx(200 * figure.get_size_inches()[0], abs=1)


def test_the_style_is_not_left_behind():
    from matplotlib import rcParams

    before = dict(rcParams)
    with figure_style():
        new_figure(1, 1)
    assert dict(rcParams) == before


@pytest.mark.parametrize("width", [PAGE, COLUMN])
def test_legends_fit_into_the_figure(width, tmp_path):
    """Long labels get fewer columns in a narrow figure."""
    with figure_style():
        figure = new_figure(width, 2)
        ax = figure.subplots()
        for label in ("solutions", "mean", "distribution of solutions", "distribution, weighted by starts"):
            ax.plot([0, 1], label=label)
        shared_legend(figure, [ax])
        figure.savefig(tmp_path / "figure.png", dpi=DPI["png"])
    assert style_faults(figure) == []
