from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from cli_helpers import SCENARIO


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
