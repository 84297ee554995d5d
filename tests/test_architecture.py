"""docs/architecture.md names every room, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from test_layers import ROOMS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_room_has_its_row() -> None:
    for package, layers in ROOMS.items():
        rooms = TEXT.split(f"| `{package}/` |")[1].split("\n\n")[0]
        named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", rooms, flags=re.MULTILINE))))
        assert named == set().union(*layers)


def test_every_path_that_it_names_exists() -> None:
    paths = re.findall(r"`((?:edge|coordinator|device_profiles|tests)/[\w/.]*)`", TEXT)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []
