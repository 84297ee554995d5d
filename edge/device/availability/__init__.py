"""When devices can be reached: "available at t?" as a pure function of (seed, device, t)."""

from edge.device.availability.base import (
    NO_STAGE,
    SEARCH_HORIZON_S,
    AvailabilityModel,
    Dropout,
)
from edge.device.availability.build import build
from edge.device.availability.combined import All, Grouped

__all__ = ["NO_STAGE", "SEARCH_HORIZON_S", "All", "AvailabilityModel", "Dropout", "Grouped", "build"]
