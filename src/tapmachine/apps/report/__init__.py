"""Report page on a run, written as a self-contained HTML file."""

from tapmachine.apps.report.writing import Options, Report, write_report

__all__ = ["Options", "Report", "write_report"]
