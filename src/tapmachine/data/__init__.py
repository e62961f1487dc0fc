"""Data sources: named data sets, file formats, tables, and rows on disk."""
