"""A page about a run: one HTML file with all it needs inside, to be opened from disk."""

from tapmachine.apps.report.writing import write_report

__all__ = ["write_report"]
