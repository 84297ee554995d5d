"""Reading text files line by line within a limit, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from device_profiles.errors import TraceError

MAX_FILE_BYTES = 256 * 2**20


def trace_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of an ASCII-compatible UTF-8 text file.

    Raises
    ------
    TraceError : the file is missing, larger than 256 MiB (``MAX_FILE_BYTES``) or not UTF-8 text.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TraceError(f"{path}: {size} bytes is above the limit of {MAX_FILE_BYTES} for a trace file")
        number = 0
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
    except UnicodeDecodeError:
        raise TraceError(f"{path}:{number}: not UTF-8 text; a trace is a plain text file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
