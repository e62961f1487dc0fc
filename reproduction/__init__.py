"""Reproduction of the paper's figures and tables: `python -m reproduction`.

Each figure is drawn from tables, which are CSV files of the output directory. A decorator adds the function that draws
a figure to `figure.FIGURES`, with the machines it needs; another one (`lab.table`) makes a table that is read from its
file if that exists.
"""
