"""SVG charts, PNG images and HTML tables, generated without Matplotlib.

The report page and the notebook representations of objects use this package.
"""
