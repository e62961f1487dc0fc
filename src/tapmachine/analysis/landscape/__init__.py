"""Landscape of a machine's solutions: search, counts, embedding in a plane, and changes during training."""

from tapmachine.analysis.landscape.diagnosis import EnergyBand, diagnose, energy_bands
from tapmachine.analysis.landscape.embedding import Embedding, embed_landscape
from tapmachine.analysis.landscape.find import Landscape, count_at, find_solutions
from tapmachine.analysis.landscape.statistics import (
    Agreement,
    SolutionsAt,
    SpatialCorrelation,
    basin_agreement,
    complexity,
    effective_number,
    overlaps,
    solutions_over_temperature,
    spatial_correlation,
)
from tapmachine.analysis.landscape.tracking import LandscapeTrack, Snapshot, track_landscape
from tapmachine.analysis.landscape.tree import SolutionTree

__all__ = [
    "Agreement",
    "Embedding",
    "EnergyBand",
    "Landscape",
    "LandscapeTrack",
    "Snapshot",
    "SolutionTree",
    "SolutionsAt",
    "SpatialCorrelation",
    "basin_agreement",
    "complexity",
    "count_at",
    "diagnose",
    "effective_number",
    "embed_landscape",
    "energy_bands",
    "find_solutions",
    "overlaps",
    "solutions_over_temperature",
    "spatial_correlation",
    "track_landscape",
]
