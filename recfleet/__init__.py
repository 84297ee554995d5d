"""A federated recommender on a fleet of simulated devices.

``recfleet.run("quickstart")`` runs a scenario and returns its tables; the command is also
``python -m recfleet``.
Everything is documented in :mod:`coordinator.api`, and imported from there when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.api import (
        DataError,
        ExportError,
        Figure,
        MetricValue,
        PluginError,
        ProfileError,
        RecfleetError,
        Run,
        RunDirectoryError,
        RunFormatError,
        Scenario,
        ScenarioError,
        SweepResult,
        ThresholdVerdict,
        TraceError,
        UnknownProfileError,
        load_plugins,
        open_run,
        run,
        run_async,
        sweep,
    )

__all__ = [
    "DataError",
    "ExportError",
    "Figure",
    "MetricValue",
    "PluginError",
    "ProfileError",
    "RecfleetError",
    "Run",
    "RunDirectoryError",
    "RunFormatError",
    "Scenario",
    "ScenarioError",
    "SweepResult",
    "ThresholdVerdict",
    "TraceError",
    "UnknownProfileError",
    "__version__",
    "load_plugins",
    "open_run",
    "run",
    "run_async",
    "sweep",
]

__version__: str
"""Version of the installed distribution."""


def __getattr__(name: str) -> Any:
    # Not before: either takes longer than all that `recfleet --help` needs.
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415

        return metadata.version("recfleet")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coordinator import api  # noqa: PLC0415

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
