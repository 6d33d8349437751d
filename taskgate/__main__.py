"""`python -m taskgate`: the command line."""

from taskgate.cli import main

main()
