"""Reproduction of the paper's figures and tables. Each has a module, which writes CSV files and draws the figure.

Each module has a TITLE; `needed(lab)`, the models that must still be trained; and `draw(lab)`, which computes missing
tables first. It may have `measured(lab)`, the models whose solutions must still be measured, and `prepare(lab)`, which
computes those tables that may be computed beside other work; by default all of them are.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

FIGURES = {  # labels and order of the paper; figures that the paper does not have come last
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
    """Return the module of a figure.

    Raises:
        ValueError: The label is unknown.
    """
    if figure not in FIGURES:
        raise ValueError(f"unknown figure {figure!r}; expected {', '.join(FIGURES)} or all")
    return import_module(f"tapmachine.apps.reproduce.{FIGURES[figure]}")
