"""python -m tapmachine is the command line."""

from tapmachine.cli import main

main()
