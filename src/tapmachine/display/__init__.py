"""Small pictures and tables as text: SVG charts, PNG images and HTML, without Matplotlib.

Used by the report page and the notebook representations of objects.
"""
