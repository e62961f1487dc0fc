"""Schemes: what a layer receives from its neighbors, and the free energy whose stationary points are solutions."""
