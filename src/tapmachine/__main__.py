"""python -m tapmachine is the command line."""

from tapmachine.apps.cli import main

main()
