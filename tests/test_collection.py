"""Tests have the same names in every process: those that share a run must agree on what there is to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_what_is_collected_depends_on_neither_time_nor_hash_seed() -> None:
    collected = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", ""]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=600
        )
        collected.append([line for line in done.stdout.splitlines() if "::" in line])
    assert len(collected[0]) > 1000
    assert collected[0] == collected[1]
