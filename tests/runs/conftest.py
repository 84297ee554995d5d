"""What all tests of whole runs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_profiles import catalogue
from device_profiles.catalogue import Catalogue


@pytest.fixture(autouse=True, scope="session")
def _profiles_are_read_once() -> Iterator[None]:
    """Keep what was read of files of profiles: to read them twice a run is most of its time."""
    read = catalogue._load
    kept: dict[tuple[tuple[Path, int], ...], Catalogue] = {}

    def load(extra: tuple[Path, ...]) -> Catalogue:
        try:
            key = tuple((path, path.stat().st_mtime_ns) for path in extra)
        except OSError:
            return read(extra)
        if key not in kept:
            kept[key] = read(extra)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "_load", load)
        yield
