"""Schemes: what a layer receives from its neighbors, and a free energy whose stationary points are the solutions."""
