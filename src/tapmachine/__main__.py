"""Entry point of the command line `python -m tapmachine`."""

from tapmachine.apps.cli import main

main()
