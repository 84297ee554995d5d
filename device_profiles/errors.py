"""Errors of profiles, traces and documents, and the places in documents that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Where a value is in a document: keys and list indices from the root."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_\-@]+")


class ProfileError(ValueError):
    """A profile whose numbers cannot describe a real device, link, availability or fleet.

    Parameters
    ----------
    owner : the profile, as a reader would name it, for example ``device 'phone_mid_2020'``.
    field : name of the offending field, as the profile type spells it.
    problem : what is wrong and what to write instead.
    """

    def __init__(self, owner: str, field: str, problem: str) -> None:
        super().__init__(f"{owner}: {field}: {problem}")
        self.owner = owner
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[ProfileError], tuple[str, str, str]]:
        return type(self), (self.owner, self.field, self.problem)


class UnknownProfileError(LookupError):
    """A name that the catalogue does not hold; ``suggestion`` is the nearest name that it does, or None."""

    def __init__(self, kind: str, name: str, suggestion: str | None) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else "see them all with: recfleet profiles list"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
        self.kind = kind
        self.name = name
        self.suggestion = suggestion

    def __reduce__(self) -> tuple[type[UnknownProfileError], tuple[str, str, str | None]]:
        return type(self), (self.kind, self.name, self.suggestion)


class TraceError(ValueError):
    """A trace, or a file of traces, that cannot be used; the message says where and what was expected."""


class UnsafePickleError(TraceError):
    """A pickle that asks for anything but plain data, or that is larger or deeper than the limits."""


def format_path(path: Path) -> str:
    """Return a path as it is shown and as ``--set`` takes it: ``faults[1].on.profile``.

    A key with other characters than letters, digits, ``_``, ``-`` and ``@`` is quoted:
    ``thresholds."round.completed"[0]``.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        shown = part if len(part) <= 60 else part[:57] + "..."
        if not _PLAIN_KEY.fullmatch(shown):
            # repr escapes line breaks, so that one error stays one line.
            shown = '"' + repr(shown)[1:-1].replace('"', '\\"') + '"'
        text += f".{shown}" if text else shown
    return text


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; line and column count from 1, a column is a character."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class DocumentError(ValueError):
    """Something wrong at a place in a document.

    ``str()`` of it is ``file:line:column: path: message``, and the suggestion on a second, indented line.

    Attributes
    ----------
    position : where.
    path : the keys that lead there; empty when the file as a whole is meant.
    message : what is wrong and what to write instead.
    suggestion : a further hint, such as ``did you mean 'x'?``, or None.
    """

    def __init__(self, position: Position, path: Path, message: str, suggestion: str | None = None) -> None:
        super().__init__(position, path, message, suggestion)
        self.position = position
        self.path = path
        self.message = message
        self.suggestion = suggestion

    def __str__(self) -> str:
        where = f"{self.position}: {format_path(self.path)}: " if self.path else f"{self.position}: "
        hint = f"\n    {self.suggestion}" if self.suggestion else ""
        return f"{where}{self.message}{hint}"


class CatalogueError(ValueError):
    """Catalogue files that cannot be used; ``problems`` holds every error found, in reading order."""

    def __init__(self, problems: Sequence[DocumentError]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
