"""Small pictures and tables as text: SVG charts, PNG images and HTML, without Matplotlib.

They are used by the report page and by what objects show of themselves in a notebook.
"""
