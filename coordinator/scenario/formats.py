"""Formats of scenario files: which are read, and the defaults that older ones had.

A file is read with the defaults of its own format. Where files extend each other, what none of them says is
read by the format of the file that brought in the section, or of the one whose null removed what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.sections import FORMAT
from device_profiles.documents import Document, Node

__all__ = ["FORMAT", "OLD_DEFAULTS", "Gap", "OldDefault", "filled", "gaps", "written_format"]


@dataclass(frozen=True, slots=True)
class OldDefault:
    """A default that a later format changed.

    Attributes
    ----------
    section, key : where it stands; scenarios have to have the section.
    value : what it was, as written in a file.
    until : the last format that had it.
    has_key : returns whether a section, as written, may hold the key.
    matters : returns whether the setting can change what a scenario asks for.
    """

    section: str
    key: str
    value: str
    until: int
    has_key: Callable[[Mapping[str, Node]], bool]
    matters: Callable[[ScenarioSettings], bool]

    def __str__(self) -> str:
        return f"{self.section}.{self.key}: {self.value}"


OLD_DEFAULTS: Final = (
    OldDefault(
        "data",
        "held_out_negatives",
        "spared",
        until=1,
        has_key=lambda section: section.get("source") != "synthetic-regression",
        matters=lambda scenario: scenario.may_draw_items,
    ),
    OldDefault(
        "rounds",
        "selection",
        "random",
        until=1,
        has_key=lambda _section: True,
        matters=lambda _scenario: True,
    ),
)


@dataclass(frozen=True, slots=True)
class Gap:
    """An old default, and the file by whose format what is left unsaid is read with it."""

    default: OldDefault
    file: str

    def is_open(self, root: Mapping[str, Node]) -> bool:
        """Return whether the content of a merged document leaves the setting unsaid."""
        section = root.get(self.default.section)
        return (
            isinstance(section, dict)
            and section.get(self.default.key) is None
            and self.default.has_key(section)
        )


def written_format(document: Document) -> int | None:
    """Return the format that a file says it has; None where it says none, or none that is known."""
    written = document.root.get("format")
    known = {str(number): number for number in range(1, FORMAT + 1)}
    return known.get(written.strip()) if isinstance(written, str) else None


def gaps(files: Sequence[tuple[int, Document]]) -> tuple[Gap, ...]:
    """Return which old defaults stand in for what a scenario leaves unsaid.

    ``files`` are those of a chain with their formats, what is extended before what extends it. What only the
    command line or a sweep removes is read by the last of them.
    """
    found = ((default, _reader(default, files)) for default in OLD_DEFAULTS)
    return tuple(Gap(default, file) for default, (number, file) in found if number <= default.until)


def _reader(default: OldDefault, files: Sequence[tuple[int, Document]]) -> tuple[int, str]:
    """Return format and name of the file by whose format ``default`` is read where it is not said."""
    reader: tuple[int, str] | None = None
    for number, document in files:
        section = document.root.get(default.section)
        if not isinstance(section, dict):
            # Null removes the section; who brings it in again is another.
            reader = None if default.section in document.root else reader
        elif default.key in section:
            reader = (number, document.file) if section[default.key] is None else _last(files)
        elif reader is None:
            reader = number, document.file
    return _last(files) if reader is None else reader


def _last(files: Sequence[tuple[int, Document]]) -> tuple[int, str]:
    number, document = files[-1]
    return number, document.file


def filled(root: dict[str, Node], missing: Iterable[Gap]) -> dict[str, Node]:
    """Return the content of a merged document with the old defaults of ``missing`` where it says nothing."""
    result = dict(root)
    for gap in missing:
        section = result.get(gap.default.section)
        if gap.is_open(result) and isinstance(section, dict):
            result[gap.default.section] = {**section, gap.default.key: gap.default.value}
    return result
