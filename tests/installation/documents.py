"""The shell blocks of a page: their commands, in order, and what the page says of them.

A block that is not run has a comment above it, ``<!-- commands: not run here, REASON -->``, with one of
:data:`REASONS`, and the paragraph before says the same to people. The comment of a line says what it ends
with, if not with 0 (``# exits with 3: they differ``, ``# exits with 0 or 3``), and whether it goes on when
its run is over (``# … until Ctrl-C``). A line that ends in a backslash goes on in the next one. A block of
text below a block of commands, with ``<!-- output -->`` above it, is what its last line prints. A block with
``<!-- file: NAME -->`` above it is written to that file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

REASONS = {
    "needs a checkout": "[Ff]rom a checkout",
    "needs data": "download|needs that file",
    "needs a second terminal": "two terminals|second terminal",
}
"""Why a block is not run, and what people are told."""

OUTPUT_COLUMNS = 110
"""Width of the terminal whose output pages show."""
_OUTPUT = re.compile(r"```\n+<!-- output -->\n```text\n(?P<text>.*?)```", re.DOTALL)
_MARK = re.compile(r"<!-- commands: (?P<rest>.*) -->")
_FILE = re.compile(r"<!-- file: (?P<name>[\w.-]+) -->")
_FENCE = re.compile(r"```(\w*)")
_SHELLS = ("sh", "bash", "shell", "zsh")
_CONSOLE = "console"
"""A block of commands, each after a dollar sign, and of what they print."""


@dataclass(frozen=True)
class Line:
    """A line of a shell block."""

    place: str
    text: str
    reason: str | None
    """Why it is not run; None if it is."""
    said: str
    """The paragraph before the block."""
    output: str | None = None
    """What it prints on standard output; None where the page does not say."""
    writes: str | None = None
    """The file that a block of the page is written to, in place of a command: ``text`` does it."""

    @property
    def comment(self) -> str:
        return self.text.partition("  #")[2]

    @property
    def codes(self) -> set[int]:
        """What it may end with: on the real clock that can depend on the machine."""
        found = re.search(r"exits with (\d+)(?: or (\d+))?", self.comment)
        return {int(code) for code in found.groups() if code is not None} if found else {0}

    @property
    def goes_on(self) -> bool:
        return "until Ctrl-C" in self.comment

    @property
    def commands(self) -> Iterator[list[str]]:
        """The arguments of each ``recfleet`` in it, without redirections."""
        if self.writes is not None:
            return
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
    """Yield the lines of a page's shell blocks, without those that hold only a comment, and its files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    printed = {text.count("\n", 0, found.start()): found["text"] for found in _OUTPUT.finditer(text)}
    language: str | None = None
    file: str | None = None
    written: list[str] = []
    reason: str | None = None
    paragraph: list[str] = []
    begun = ""
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        mark = _MARK.fullmatch(line)
        if language is None and fence:
            language = fence.group(1)
        elif fence:
            if file is not None:
                text = "\n".join([f"cat > {file} << 'END'", *written, "END"])
                yield Line(f"{page}:{number}", text, None, "", writes=file)
            language, file, written, reason, paragraph = None, None, [], None, []
        elif language is not None and file is not None:
            written.append(line)
        elif language == _CONSOLE and line.startswith("$ "):
            yield Line(f"{page}:{number}", line.removeprefix("$ "), reason, " ".join(paragraph))
        elif language in _SHELLS and line.endswith("\\"):
            begun += line.removesuffix("\\")
        elif language in _SHELLS and line.strip() and not line.startswith("#"):
            command, begun = begun + line.strip() if begun else line, ""
            yield Line(f"{page}:{number}", command, reason, " ".join(paragraph), printed.get(number))
        elif language is None and mark:
            reason = mark["rest"].removeprefix("not run here, ")
        elif language is None and (named := _FILE.fullmatch(line)):
            file = named["name"]
        elif language is None and line.strip():
            if reason is not None or (paragraph and paragraph[-1] == ""):
                paragraph = []
            paragraph.append(line)
        elif language is None:
            paragraph.append("")


def without_measured(text: str) -> list[str]:
    """Return lines of an output without what differs from computer to computer: times, sizes of reports."""
    measured = re.compile(r"(│ wall time\s+│|\.html: [0-9]+ runs?,).*")
    return [measured.sub(r"\1", line.rstrip()) for line in text.splitlines()]
