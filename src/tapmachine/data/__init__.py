"""Data sources: named data sets, file formats, rows on disk."""
