"""What tells the cells of a sweep apart, in few words: cells may differ in whole sections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence


def leaves(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return settings, pairs of path and text, with each value of a mapping on its own.

    A mapping is written as JSON.
    """
    return {path: text for name, value in settings for path, text in _inside(name, value)}


def _inside(path: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        value = json.loads(text) if text.startswith("{") else text
    except ValueError:
        value = text
    if not isinstance(value, dict) or not value:
        yield path, text
        return
    for key, inner in value.items():
        written = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        yield from _inside(f"{path}.{key}", written)


def telling(cells: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the settings that tell cells apart: each splits a group that those before it have left whole.

    All settings where there is but one cell.
    """
    names = dict.fromkeys(name for cell in cells for name in cell)
    if len(cells) < 2:
        return tuple(names)
    found: list[str] = []
    groups: list[tuple[str | None, ...]] = [() for _ in cells]
    for name in names:
        split = [(*group, cell.get(name)) for group, cell in zip(groups, cells, strict=True)]
        if len(set(split)) > len(set(groups)):
            found.append(name)
            groups = split
    return tuple(found)
