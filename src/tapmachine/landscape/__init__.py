"""The solutions of a machine as a landscape: found, counted, followed through a training, mapped."""

from tapmachine.landscape.diagnosis import Band, bands, diagnose
from tapmachine.landscape.embedding import Embedding, embed
from tapmachine.landscape.fields import FieldRanking, rank_fields
from tapmachine.landscape.find import Landscape, find_solutions
from tapmachine.landscape.tracking import Snapshot, Track, track
from tapmachine.landscape.tree import SolutionTree

__all__ = [
    "Band",
    "Embedding",
    "FieldRanking",
    "Landscape",
    "Snapshot",
    "SolutionTree",
    "Track",
    "bands",
    "diagnose",
    "embed",
    "find_solutions",
    "rank_fields",
    "track",
]
