"""Adaptive TAP."""
