"""The shell blocks of a page: their commands, in order, and what the page says of them.

A block that is not run has a comment above it, ``<!-- commands: not run here, REASON -->``, with one of
:data:`REASONS`, and the paragraph before says the same to people. The comment of a line says what it ends
with, if not with 0 (``# exits with 3: they differ``), and whether it goes on when its run is over (``# …
until Ctrl-C``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

REASONS = {
    "needs a checkout": "from a checkout",
    "needs data": "download|needs that file",
    "needs a second terminal": "two terminals|second terminal",
}
"""Why a block is not run, and what people are told."""

_MARK = re.compile(r"<!-- commands: (?P<rest>.*) -->")
_FENCE = re.compile(r"```(\w*)")
_SHELLS = ("sh", "bash", "shell", "console", "zsh")


@dataclass(frozen=True)
class Line:
    """A line of a shell block."""

    place: str
    text: str
    reason: str | None
    """Why it is not run; None if it is."""
    said: str
    """The paragraph before the block."""

    @property
    def comment(self) -> str:
        return self.text.partition("  #")[2]

    @property
    def code(self) -> int:
        """What it ends with."""
        found = re.search(r"exits with (\d+)", self.comment)
        return int(found.group(1)) if found else 0

    @property
    def goes_on(self) -> bool:
        return "until Ctrl-C" in self.comment

    @property
    def commands(self) -> Iterator[list[str]]:
        """The arguments of each ``recfleet`` in it, without redirections."""
        words = shlex.shlex(self.text, posix=True, punctuation_chars="&|;<>")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("&|;<>"):
                if command[:1] == ["recfleet"]:
                    yield command[1:]
                # The file behind a redirection is a command that is not recfleet.
                command = []
            else:
                command.append(word)


def lines_of(page: str) -> Iterator[Line]:
    """Yield the lines of the shell blocks of a page, without those that hold only a comment."""
    language: str | None = None
    reason: str | None = None
    paragraph: list[str] = []
    for number, text in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(text)
        mark = _MARK.fullmatch(text)
        if language is None and fence:
            language = fence.group(1)
        elif fence:
            language, reason, paragraph = None, None, []
        elif language in _SHELLS and text.strip() and not text.startswith("#"):
            yield Line(f"{page}:{number}", text, reason, " ".join(paragraph))
        elif language is None and mark:
            reason = mark["rest"].removeprefix("not run here, ")
        elif language is None and text.strip():
            if reason is not None or (paragraph and paragraph[-1] == ""):
                paragraph = []
            paragraph.append(text)
        elif language is None:
            paragraph.append("")
