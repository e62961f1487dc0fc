"""A page about a run: one HTML file with all it needs inside, to be opened from disk."""

from tapmachine.apps.report.writing import Options, Report, write_report

__all__ = ["Options", "Report", "write_report"]
