"""The paper's figures and tables by command: a module for each, which writes a CSV and draws the figure from it.

Each module has a TITLE; `needed(lab)`, the models that must still be trained; and `draw(lab)`, which computes missing
tables first. It may have `measured(lab)`, the models whose solutions must still be measured, and `prepare(lab)`, which
computes those tables that may be computed beside other work; by default all of them are.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

FIGURES = {  # by their labels in the paper, in its order; what only we have comes last
    "params": "parameters",
    "freeEnergies": "free_energy_curves",
    "bmnist-tapLL": "training_likelihood",
    "bmnist-rf": "receptive_fields",
    "fedist": "free_energy_bands",
    "solnvis": "solution_maps",
    "compareInitSolns": "starts_and_solutions",
    "bmnist-denoise": "denoising",
    "bmnist-denoise-images": "denoising_images",
    "adatap": "adaptive",
    "dbmtraining": "deep_training",
    "tap-ais-psuedo": "likelihood_estimates",
    "landscape": "landscape_numbers",
    "discussion": "other_hidden_units",
    "noisy-starts": "noisy_starts",
    "claims": "claims",
}


def experiment(figure: str) -> "ModuleType":
    """The module of a figure."""
    if figure not in FIGURES:
        raise ValueError(f"there is no figure {figure!r}; there are {', '.join(FIGURES)}, and all")
    return import_module(f"tapmachine.apps.reproduce.{FIGURES[figure]}")
