"""What this host says of the process: measured, and never part of a result."""

from __future__ import annotations

from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_HIGH_WATER = "VmHWM:"


def peak_rss_bytes() -> int:
    """Return the largest resident memory of this process so far, bytes; the present one where unknown.

    Not from ``getrusage``: there a child starts with the peak of the process that made it.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith(_HIGH_WATER):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)
