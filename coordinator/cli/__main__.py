"""``python -m coordinator.cli``: the command where its script is not on the search path."""

from coordinator.cli import main

main()
