"""The command ``recfleet``: one module per group of verbs, loaded only when its verb is used."""

from coordinator.cli.entry import main

__all__ = ["main"]
