"""Reproduction of the paper's figures and tables: `python -m reproduction`."""
