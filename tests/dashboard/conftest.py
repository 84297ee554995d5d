"""What the tests of the dashboard share with those of runs, reports and the service."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "report"), str(TESTS / "runs"), str(TESTS / "service")]
