"""Standard output and standard error in any encoding, and when their reader has closed them.

Without this, a character that a terminal cannot show ends the command with an error, and so does a reader
that has seen enough (``recfleet show FILE | head -1``), in whatever place happens to write next.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Any, Final

from coordinator.cli.termination import interrupt

_ERRORS: Final = "recfleet"
"""Name of the error handler of both streams."""
_PLAIN: Final = {
    "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "✗": "x", "±": "+-", "×": "x", "·": "-", "•": "*",
    "≤": "<=", "≥": ">=", "ε": "e", "δ": "d", "σ": "s", "μ": "u", "²": "2", "“": '"', "”": '"', "’": "'",
}  # fmt: skip


def _written_plainly(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for the first character that cannot be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text, at = error.object, error.start
    if 0xD800 <= ord(text[at]) < 0xE000:  # a byte of a file name that is no text
        return f"\\x{ord(text[at]) & 0xFF:02x}", at + 1
    plain = _PLAIN.get(text[at], "?")
    end = at + 1
    # Spaces after it make room for what has become longer: the columns of a table stay straight.
    while end - at < len(plain) and text[end : end + 1] == " ":
        end += 1
    return plain, end


class _Output(io.TextIOWrapper):
    """A standard stream of text.

    The first write that fails because the reader is gone ends in order what goes on; one that fails otherwise
    (a full disk) raises ``OSError`` with the stream's name. What is written afterwards goes nowhere.

    Attributes
    ----------
    reader_gone : whether a write has failed because nobody reads any more.
    silent : whether what is written goes nowhere.
    """

    def __init__(self, stream: io.TextIOWrapper, called: str) -> None:
        encoding, lines, through = stream.encoding, stream.line_buffering, stream.write_through
        super().__init__(
            stream.detach(), encoding, _ERRORS, newline="\n", line_buffering=lines, write_through=through
        )
        self.reader_gone = False
        self.silent = False
        self._called = called

    @property
    def buffer(self) -> Any:
        # Where there are bytes below ASCII text, click writes UTF-8 to them.
        if codecs.lookup(self.encoding).name == "ascii":
            raise AttributeError("buffer")
        return super().buffer

    def write(self, text: str) -> int:
        # Not for nothing: click tries that, and takes no error for an answer.
        if text != "" and not self.silent:
            try:
                super().write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.silent = True
        # What is in the buffers, too: the interpreter would try to write it at its exit.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.fileno())
        if not isinstance(error, ConnectionError):
            raise OSError(error.errno, error.strerror, self._called) from error
        self.reader_gone = True
        if self is sys.stdout and isinstance(sys.stderr, _Output):
            sys.stderr.silent = True  # that it was interrupted is no news to whoever has closed it
        interrupt()


def open_outputs() -> None:
    """Put streams that can write everything in place of ``sys.stdout`` and ``sys.stderr``."""
    codecs.register_error(_ERRORS, _written_plainly)
    for name, called in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        # One that was closed when the command began is None, and stays so.
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _Output(stream, called))


def reader_gone() -> bool:
    """Return whether somebody has closed an output before the command had written everything."""
    return any(isinstance(stream, _Output) and stream.reader_gone for stream in (sys.stdout, sys.stderr))
