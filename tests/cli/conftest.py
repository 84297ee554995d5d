from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

SCENARIO = """\
format: 2
title: Sixty clients, three rounds
seed: 3
data: {source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 3, cohort: 20, quorum: 1, deadline: 60 s}
evaluation: {every: 1}
thresholds:
  round.completed: [rate == 100%]
  device.up_bytes: [max < 64 KiB]
"""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tracebacks of commands that fail among the files of the tests."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of the test's own the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
