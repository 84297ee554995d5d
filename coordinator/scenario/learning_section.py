"""The ``learning`` section: the settings of one of the registered methods."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from coordinator.scenario.model import Registered
from edge.core.plugins import ALGORITHMS, View

Learning = Annotated[
    BaseModel,
    Registered("algorithm", View(ALGORITHMS, lambda method: method.Settings), kind=ALGORITHMS),
]


def method_name(settings: Any) -> str:
    """Return the name under which the method of these settings is registered."""
    return str(settings.algorithm)
