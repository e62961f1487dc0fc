"""Figures and HTML for pages, notebooks and files: charts and images drawn with Matplotlib, tables and progress bars.

Figures of landscapes are drawn in `tapmachine.analysis.landscape.figures`.
"""
