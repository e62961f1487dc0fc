"""Reproduction of the paper's figures and tables, with one module per figure or table.

Each module writes CSV files and draws its figure. It defines `TITLE`, `needed(lab)` and `draw(lab)`: `needed` returns
the models that must still be trained, and `draw` computes missing tables before it draws the figure. A module may also
define `measured(lab)`, which returns the models whose solutions must still be measured, and `prepare(lab)`, which
computes the tables that can be computed in parallel with other tasks (default: all tables).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

FIGURES = {  # labels and order as in the paper; figures that are not in the paper come last
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
        ValueError: If the label is unknown.
    """
    if figure not in FIGURES:
        raise ValueError(f"unknown figure {figure!r}; expected {', '.join(FIGURES)} or all")
    return import_module(f"reproduction.{FIGURES[figure]}")
