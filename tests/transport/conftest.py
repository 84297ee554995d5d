"""Where the measured transfers are."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def measured_folder() -> Path:
    data = os.environ.get("RECFLEET_DATA")
    if not data:
        pytest.skip(
            "RECFLEET_DATA is not set; the measured transfers lie in reference/link-validation beside it"
        )
    folder = Path(data).parent / "reference" / "link-validation"
    if not folder.is_dir():
        pytest.skip(f"no measured transfers in {folder}")
    return folder


@pytest.fixture(scope="session")
def measured(measured_folder: Path) -> Callable[[str], list[list[str]]]:
    """Rows of a file: congestion control, Mbit/s, RTT ms, loss, jitter, queue, direction, payload, cold/warm,
    connect s, total s, retransmitted segments."""

    def read(name: str) -> list[list[str]]:
        with (measured_folder / name).open(newline="", encoding="ascii") as file:
            return list(csv.reader(file))

    return read
