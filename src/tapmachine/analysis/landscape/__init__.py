"""Landscape of a machine's solutions: search, counts, embedding in a plane, and changes during training."""

from tapmachine.analysis.landscape.diagnosis import diagnose
from tapmachine.analysis.landscape.embedding import Embedding, embed_landscape
from tapmachine.analysis.landscape.find import Landscape, find_solutions
from tapmachine.analysis.landscape.tracking import LandscapeTrack, track_landscape
from tapmachine.analysis.landscape.tree import SolutionTree

__all__ = [
    "Embedding",
    "Landscape",
    "LandscapeTrack",
    "SolutionTree",
    "diagnose",
    "embed_landscape",
    "find_solutions",
    "track_landscape",
]
