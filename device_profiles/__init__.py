"""What devices, links and availability are like: units, documents, profiles and the catalogue."""

from __future__ import annotations

from typing import Final

CATALOGUE_SECTIONS: Final = ("devices", "networks", "availability", "fleets", "radios", "thermal", "crypto")
"""Sections of a catalogue file that hold profiles; ``sources`` is the one besides them."""
