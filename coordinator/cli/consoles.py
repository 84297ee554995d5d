"""Where tables and progress are written."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_UNBOUNDED_WIDTH: Final = 200
"""Columns where the reader is no terminal and ``COLUMNS`` does not say: tables are not broken for a log."""


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output, or for standard error.

    Text is never taken for markup, since names of profiles and file names may hold brackets.
    """
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNBOUNDED_WIDTH
    return made
