"""The scenarios that come with recfleet: where their files are, and their names."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Final

from coordinator.scenario.errors import did_you_mean

__all__ = ["hint", "is_name", "shipped_files"]

_SUFFIX: Final = ".yaml"
_INSTALLED: Final = FilePath(__file__).resolve().parent / "files"
"""Where a wheel has them; see ``force-include`` in pyproject.toml."""
_IN_SOURCE_TREE: Final = FilePath(__file__).resolve().parents[2] / "scenarios"


def shipped_files() -> dict[str, FilePath]:
    """Return the files of the shipped scenarios by name, sorted.

    A name is that of the file without the suffix. The files lie inside the package where it is installed, and
    beside it in a source tree.
    """
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_SOURCE_TREE
    return {file.stem: file for file in sorted(folder.glob(f"*{_SUFFIX}"))}


def is_name(written: str) -> bool:
    """Whether a text can be the name of a shipped scenario: it has neither a folder nor a suffix."""
    return bool(written) and "." not in written and not os.path.dirname(written)


def hint(written: str) -> str | None:
    """Return a hint for a scenario that does not exist: a file beside it, or a shipped one of a like name.

    Parameters
    ----------
    written : the name or path of the file that was looked for.
    """
    if is_name(written) and os.path.isfile(f"{written}{_SUFFIX}"):
        return f"did you mean the file '{written}{_SUFFIX}'?"
    stem = os.path.basename(written).removesuffix(_SUFFIX)
    shipped = shipped_files()
    if stem in shipped:
        return f"one is shipped: write {stem!r}, or copy it with: recfleet scenarios --copy {stem}"
    close = did_you_mean(stem, shipped)
    return close or ("see those that are shipped with: recfleet scenarios" if is_name(written) else None)
