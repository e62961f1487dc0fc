"""Conversion of data rows to images, heat maps or bar charts on the report page."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from tapmachine.apps.report.results import RunResults

MOST_PIXELS = 48  # maximum side length of an image; larger images are reduced
MOST_BARS = 400  # maximum number of bars


class View:
    """Conversion of rows to values in [0, 1], reduced to a size that fits on the page.

    Attributes:
        kind: Type of display: `image`, `heat` or `bars`.
        height, width: Size of the array of values stored for each row.
        names: Names of the columns shown as bars; empty for other types of display.
    """

    def __init__(self, run: RunResults) -> None:
        units, shape = run.machine.layers[0], None if run.images is None else run.images.shape
        if len(units.state_shape) == 2:
            self.kind, height, width = "heat", units.state_shape[1], min(units.n, MOST_BARS)
        elif shape is not None and shape[0] * shape[1] == units.n:
            largest = max(1.0, max(shape) / MOST_PIXELS)
            self.kind, height, width = "image", round(shape[0] / largest), round(shape[1] / largest)
        else:
            self.kind, height, width = "bars", 1, min(units.n, MOST_BARS)
        self.height, self.width, self._shape = max(1, height), max(1, width), shape
        lower, upper = (bound.detach().double().cpu() for bound in units.bounds())
        if not bool(torch.isfinite(upper - lower).all()) and run.landscape is not None:
            starts = run.landscape.track.starts.double()
            lower, upper = starts.amin(0), starts.amax(0)
        self.lower, self.length = lower, torch.where(upper > lower, upper - lower, 1.0)
        self.names = [] if run.table is None else [column.name for column in run.table.columns]
        if self.kind != "bars" or not len(self.names) == self.width == units.n:
            self.names = []

    def values(self, rows: Tensor) -> Tensor:  # (K, *state_shape) -> (K, height·width)
        """Scale rows to [0, 1] and reduce them to the size of the view."""
        values = ((rows.double() - self.lower) / self.length).clamp(0, 1)
        if self.kind == "heat":
            return adaptive_avg_pool1d(values.transpose(1, 2), self.width).flatten(1)
        if self.kind == "bars":
            return adaptive_avg_pool1d(values.flatten(1).unsqueeze(1), self.width).squeeze(1)
        assert self._shape is not None
        images = values.view(-1, 1, self._shape[0], self._shape[1])
        return adaptive_avg_pool2d(images, (self.height, self.width)).flatten(1)
