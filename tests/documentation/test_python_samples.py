"""Python in pages without tests of their own runs as printed; others are in tests/api, plugins and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT

_SAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TESTED_ELSEWHERE = {
    *("adding-a-fault.md", "adding-an-algorithm.md", "adding-a-reader.md", "adding-a-selector.md"),
    *("adding-a-sink.md", "torch.md", "guide.md", "pipelines.md", "protocol.md", "python.md"),
}
HERE = (pytest.param("README.md", marks=pytest.mark.slow), "docs/model-files.md")


@pytest.mark.parametrize("page", HERE)
def test_python_runs_as_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/model-files.md":
        pytest.importorskip("onnx", reason="needs pip install 'recfleet[export]'")
    monkeypatch.chdir(tmp_path)
    samples = _SAMPLE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert samples
    for sample in samples:
        exec(compile(sample, page, "exec"), {})


def test_every_page_with_python_has_a_test() -> None:
    written = {page for page in PAGES if _SAMPLE.search((ROOT / "docs" / page).read_text(encoding="utf-8"))}
    assert written == TESTED_ELSEWHERE | {"model-files.md"}
