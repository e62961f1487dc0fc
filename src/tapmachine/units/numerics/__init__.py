"""Numerical methods shared by several unit types."""
