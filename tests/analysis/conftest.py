"""The analyses are tested on the small known runs of the tests of metrics."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "metrics"))
