"""Figures: what they show, and how they become part of a page."""

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from tapmachine.analysis.landscape.figures import free_energies, map_thumbnails, solution_map
from tapmachine.display import charts
from tapmachine.display.figures import COLORS, figure_style, new_figure, styled, svg
from tapmachine.display.images import image_grid, image_strips


def axes():
    return new_figure(3, 3).subplots()


# ----- images


def test_images_and_their_names():
    images = torch.rand(12, 30, generator=torch.Generator().manual_seed(0))
    ax = axes()
    image_strips(ax, {"clean": images[:4], "noisy": images[4:7]}, (5, 6), ["1", "2", "3", "4"])
    assert ax.images[0].get_array().shape == (2 * 6 - 1, 4 * 7 - 1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["clean", "noisy"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3", "4"]
    ink = ax.images[0].cmap(1.0)[:3], ax.images[0].cmap(0.0)[:3]
    assert ink == ((0, 0, 0), (1, 1, 1))  # black on white, as in the paper
    with pytest.raises(ValueError, match="30 pixels; expected 5×5"):
        image_grid(ax, images, (5, 5))
    assert image_grid(ax, images - 0.5, (5, 6)).get_clim() == (-1, 1)  # what a color bar needs


def test_images_share_a_scale():
    """A faint image remains faint beside a strong one, unless each image has its own scale."""
    ax = axes()
    images = torch.tensor([[0.0, 0.2], [1.0, 0.0]])
    for scale, largest in ((None, 1.0), (1.0, 0.2)):
        drawn = image_grid(ax, images, (1, 2), scale=scale)
        assert drawn.get_array()[0, :2].max() == pytest.approx(largest)
    image_strips(ax, {"faint": images[:1], "strong": images[1:]}, (1, 2))
    assert ax.images[-1].get_array()[0, :2].max() == pytest.approx(0.2)
    assert ax.images[-1].get_clim() == (0, 1)


# ----- landscapes


def test_free_energies_and_numbers_of_solutions():
    ax = axes()
    free_energies(ax, [1, 2], [torch.zeros(1), torch.tensor([1.0, 3.0])])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["solutions", "mean"]
    assert ax.lines[-1].get_ydata().tolist() == [0, 2]
    assert ax.figure.axes[1].lines[0].get_ydata().tolist() == [1, 2]


def test_maps():
    ax, points = axes(), torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    solution_map(ax, points[:5, :2].numpy(), points[:5, 2].numpy(), points[:, :2], location="bottom")
    assert [len(dots.get_offsets()) for dots in ax.collections] == [12, 5]
    assert ax.figure.axes[1].get_xlabel() == "free energy (nats)"


def test_thumbnails_cover_no_points():
    ax = axes()
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    solution_map(ax, points)
    map_thumbnails(ax, points, torch.rand(40, 12), (4, 3), count=7)
    boxes = [image.get_extent() for image in ax.images]
    assert len(boxes) == 7
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for x0, x1, y0, y1 in boxes:
        assert (x1 - x0) / (y1 - y0) == pytest.approx(3 / 4)  # undistorted, as the axes have equal scales
        assert left <= x0 < x1 <= right
        assert bottom <= y0 < y1 <= top
        assert not ((points[:, 1] > y0) & (points[:, 1] < y1)).any()
    assert all(a[1] <= b[0] or b[1] <= a[0] or a[2] != b[2] for a, b in combinations(boxes, 2)), "they overlap"
    connected = {tuple(line.get_xydata()[-1]) for line in ax.lines}
    assert connected <= {tuple(point) for point in points.double().tolist()}


# ----- charts, as parts of a page


CHARTS = {
    "training": (charts.training_curves, [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": None}]),
    "scatter": (charts.scatter, [(0.0, 1.0), (1.0, 3.0)], "<x>", "y", True),
    "histogram": (charts.histogram, {"data": [0.5, 0.5], "samples": [1.0, 0.0]}, [0, 1, 2], "$a_b$ & <b>"),
    "bars": (charts.bars, ["<yes>", "no" * 20], {"data": [0.0, 1.0], "samples": [0.5, 0.5]}, "日本"),
    "matrix": (charts.matrix, np.array([[1.0, -0.5], [np.nan, 0.0]]), ["a", "b"], ["a", "$b$"]),
}


@pytest.mark.parametrize("name", CHARTS)
def test_charts_on_a_page(name):
    """Well-formed, in the color of the page's text, without links, and without identifiers that two figures share."""
    draw, *arguments = CHARTS[name]
    first, second = (svg(f'{label} of "{name}"', draw, *arguments) for label in ("one", "other"))
    element = ElementTree.fromstring(first)
    assert element.get("aria-label") == f'one of "{name}"'
    assert "http" not in first.replace("http://www.w3.org/2000/svg", "")
    assert "<style" not in first
    assert first.count("currentColor") >= 2
    identifiers = [set(re.findall(r'id="([^"]+)"', text)) for text in (first, second)]
    assert not identifiers[0] & identifiers[1]
    assert first == svg(f'one of "{name}"', draw, *arguments)  # the same bytes each time


def test_names_in_charts_are_text():
    text = " ".join(ElementTree.fromstring(svg("", *CHARTS["histogram"])).itertext())
    assert "$a_b$ & <b>" in text
    text = " ".join(ElementTree.fromstring(svg("", *CHARTS["bars"])).itertext())
    for expected in ("<yes>", "nonono", "…", "日本", "0 / 50 %", "100 / 50 %"):
        assert expected in text
    text = " ".join(ElementTree.fromstring(svg("", *CHARTS["matrix"])).itertext())
    assert "−50" in text
    assert "nan" not in text


def test_curves_are_what_was_measured():
    records = [
        {"epoch": e, "log_likelihood": -e, "validation_log_likelihood": None if e == 2 else e} for e in (1, 2, 3)
    ]
    ax = axes()
    charts.training_curves(ax, records)
    assert [line.get_label() for line in ax.lines] == ["training data", "held-out data"]
    assert ax.lines[1].get_xdata().tolist() == [1, 3]


def test_the_style_is_not_left_behind():
    from matplotlib import rcParams

    before = dict(rcParams)
    with figure_style():
        new_figure(1, 1)
    assert styled(lambda: rcParams["text.color"])() != before["text.color"]
    assert dict(rcParams) == before
    assert len({*COLORS}) == len(COLORS)
