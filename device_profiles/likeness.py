"""Profiles that are like others: all that the named one says, with the written keys in place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from device_profiles.schema import spread_sources

MAX_CHAIN: Final = 8
"""Profiles in a chain of ``like``, the one that begins it included."""


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``above`` over ``below``: mappings merge, other values replace, None removes."""
    result: dict[str, Any] = {}
    for key in (*below, *(key for key in above if key not in below)):
        value = above.get(key, below.get(key))
        if isinstance(value, dict) and key in above:
            lower = below.get(key)
            value = laid_over(lower if isinstance(lower, dict) else {}, value)
        # An empty value that is not written here is one of the other profile.
        if value is not None or key not in above:
            result[key] = value
    return result


def derived(parent: Mapping[str, Any], child: Mapping[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Return the keys of a profile that is like another.

    Parameters
    ----------
    parent : keys of the other one. child : keys that are written, ``like`` left out.
    words : the keys that hold no number.

    Returns
    -------
    The keys of both. A number keeps its source only if ``child`` does not write it: the source of the old
    value says nothing about the new one. One text as ``sources`` of ``child`` holds for what it writes.
    """
    below, above = spread_sources(dict(parent), words), spread_sources(dict(child), words)
    result = laid_over(_without_sources(below), _without_sources(above))
    inherited = below.get("sources")
    sources = {
        key: source
        for key, source in (inherited.items() if isinstance(inherited, dict) else ())
        if key not in above
    }
    written = above.get("sources", {})
    result["sources"] = {**sources, **written} if isinstance(written, dict) else written
    return result


def anchored(
    content: Mapping[str, Any], folder: FilePath, files: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    """Return the keys of a profile with the names of files, found at ``files``, starting at ``folder``.

    They come out absolute: so they hold in a profile whose own names start elsewhere.
    """
    result = dict(content)
    for key, *inner in files:
        value = result.get(key)
        if inner and isinstance(value, dict):
            result[key] = anchored(value, folder, [tuple(inner)])
        elif inner and isinstance(value, list):
            below = [tuple(inner)]
            result[key] = [anchored(one, folder, below) if isinstance(one, dict) else one for one in value]
        elif not inner and isinstance(value, str):
            result[key] = str((folder / value).absolute())
    return result


def _without_sources(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "sources"}
