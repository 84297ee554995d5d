"""A federated recommender on a fleet of simulated devices; the command is also ``python -m recfleet``."""

from __future__ import annotations

__all__ = ["__version__"]

__version__: str
"""Version of the installed distribution."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not before: it takes longer than all that `recfleet --help` needs.
    from importlib import metadata  # noqa: PLC0415

    return metadata.version("recfleet")
