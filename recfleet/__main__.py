"""``python -m recfleet``: the command where its script is not on the search path."""

from coordinator.cli import main

main()
