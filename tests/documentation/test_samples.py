"""Samples of scenarios, anywhere in the documentation, are laid over a scenario and are valid there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, PAGES
from ruamel.yaml import YAML

from coordinator.scenario.load import load
from coordinator.scenario.shipped import shipped_files

_SAMPLE = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TESTED_ELSEWHERE = {
    *("adding-a-fault.md", "adding-an-algorithm.md", "adding-a-reader.md", "adding-a-selector.md"),
    *("adding-a-profile.md", "pipelines.md", "timeline.md", "torch.md", "tuning.md"),
}
"""Pages whose samples need plug-ins, are of other files than scenarios, or replace sections."""
BASES = {"fedmmf": "fedmmf_shielded"}
"""What samples of a method are laid over, where that is not ``quickstart``."""
SETTINGS = {
    "evaluation.md": ["data.users=300", "thresholds=null"],
    "methods/dpps.md": ["learning.upload=dense", "learning.weighting=uniform"],
}
"""What a page's samples need of the scenario that they are laid over."""


def samples() -> list[tuple[str, int, str]]:
    """Return page, line and text of each sample."""
    found = []
    for page in (page for page in PAGES if page not in TESTED_ELSEWHERE):
        text = (DOCS / page).read_text(encoding="utf-8")
        found += [(page, text.count("\n", 0, one.start()) + 1, one[1]) for one in _SAMPLE.finditer(text)]
    return found


SAMPLES = samples()


def test_there_are_samples() -> None:
    assert len(SAMPLES) > 15
    assert set(PAGES) >= TESTED_ELSEWHERE


@pytest.mark.parametrize(("page", "line", "text"), SAMPLES, ids=lambda value: str(value)[:40])
def test_a_sample_is_valid(page: str, line: int, text: str, tmp_path: Path) -> None:
    yaml = YAML(typ="safe")
    sample: dict[str, Any] = yaml.load(text)
    name = BASES.get(sample.get("learning", {}).get("algorithm"), "quickstart")
    base = yaml.load(shipped_files()[name].read_text(encoding="utf-8"))
    if "source" in sample.get("data", {}):
        del base["data"]
    with (tmp_path / "quickstart.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(base, file)
    if not {"format", "extends"} & set(sample):
        text = f"extends: quickstart.yaml\n{text}"
    (tmp_path / "sample.yaml").write_text(text, encoding="utf-8")
    load(tmp_path / "sample.yaml", SETTINGS.get(page, []), references=False)
