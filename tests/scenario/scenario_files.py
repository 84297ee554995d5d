"""A complete scenario that tests change in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_origin

from pydantic import BaseModel

from coordinator.scenario.model import Shape, field_shape, item_shape

LINES = (
    "format: 2",
    "seed: 7",
    "data:",
    "  source: synthetic-ratings",
    "  users: 200",
    "  items: 300",
    "  ratings_per_user: 30",
    "fleet:",
    "  mix: global_android_2024",
    "learning:",
    "  algorithm: fedrecon",
    "  factors: 8",
    "rounds:",
    "  count: 20",
    "  cohort: 50",
    "  deadline: 60 s",
    "thresholds:",
    "  round.completed: [rate == 100%]",
)
BASE = "\n".join(LINES) + "\n"


def with_line(number: int, *replacement: str) -> str:
    """Return the scenario with line ``number`` (from 1) replaced by other lines, or by none."""
    return "\n".join((*LINES[: number - 1], *replacement, *LINES[number:])) + "\n"


def with_lines_after(number: int, *added: str) -> str:
    """Return the scenario with lines put after line ``number``."""
    return "\n".join((*LINES[:number], *added, *LINES[number:])) + "\n"


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder and return the path of ``s.yaml`` in it."""
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "s.yaml"


def sections_of(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a section and every section below it, each once, in reading order."""
    seen: set[type[BaseModel]] = set()

    def visit(shape: Shape) -> Iterator[type[BaseModel]]:
        inside = list(shape.choice.sections.values()) if shape.choice is not None else []
        if shape.section is not None:
            inside.append(shape.section)
        for section in inside:
            if section not in seen:
                seen.add(section)
                yield section
                for name in section.model_fields:
                    yield from visit(field_shape(section, name))
        if get_origin(shape.type) in (tuple, list, dict):
            yield from visit(item_shape(shape))

    yield from visit(Shape(root))
