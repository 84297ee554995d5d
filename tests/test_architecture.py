"""docs/architecture.md names every room, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from test_layers import ROOMS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_room_has_its_row_and_layer() -> None:
    for package, layers in ROOMS.items():
        table = TEXT.split(f"| `{package}/` |")[1].split("\n\n")[0]
        found: dict[int, set[str]] = {}
        for names, layer in re.findall(r"^\|([^|]*)\| (\d) \|", table, flags=re.MULTILINE):
            found.setdefault(int(layer), set()).update(re.findall(r"`(\w+)`", names))
        assert found == dict(enumerate(layers))


def test_every_path_that_it_names_exists() -> None:
    paths = re.findall(r"`((?:edge|coordinator|device_profiles|tests)/[\w/.]*)`", TEXT)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []
