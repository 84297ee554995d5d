from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from coordinator.cli.failures import report_failure


@pytest.mark.parametrize("arguments", [["--token", "recfleet.a.b"], ["--token=recfleet.a.b"]])
def test_a_filed_traceback_holds_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report_failure(RuntimeError("boom"), ["device", "url", *arguments, "--count", "2"], show_traceback=False)
    (file,) = tmp_path.iterdir()
    text = file.read_text(encoding="utf-8")
    assert "recfleet.a.b" not in text
    assert "device url" in text
    assert "--count 2" in text
