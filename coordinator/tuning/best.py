"""A scenario file that holds what differs from another: what a tuning has found, and what was set for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from coordinator.scenario.dump import yaml_lines
from coordinator.scenario.extends import read_chain
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.references import check_references
from device_profiles.documents import Node
from device_profiles.errors import Path as Place

__all__ = ["best_text"]


def best_text(loaded: LoadedScenario, best: LoadedScenario, folder: Path, said: str) -> str:
    """Return a scenario file that extends the one that was read, and asks for the run of another.

    Parameters
    ----------
    loaded : the scenario as it was read, with what was set on the command line.
    best : the same with other settings.
    folder : where the file shall lie: names of files in it start there.
    said : a comment for its first line.
    """
    _, written = next(iter(loaded.files.items()))
    root = {key: node for key, node in read_chain(written, []).document.root.items() if key != "format"}
    wanted = {key: node for key, node in best.document.root.items() if key != "format"}
    differing = _difference(root, wanted)
    for place, file in _files_of(best):
        # The same text on the command line may name another file than in the scenario.
        given = best.document.position(place).file not in best.files
        _put(differing, place, _named(file, folder), make=given)
    extended = {"extends": _named(written, folder), **differing}
    return "\n".join([f"# {said}", *yaml_lines(extended)]) + "\n"


def _named(file: Path, folder: Path) -> str:
    """Return the name of a file as it is from a folder; the whole of it where they share no folder."""
    paths = [os.path.abspath(file), os.path.abspath(folder)]
    return os.path.relpath(*paths) if os.path.commonpath(paths) != os.path.sep else paths[0]


def _difference(below: dict[str, Node], above: dict[str, Node]) -> dict[str, Node]:
    """Return the mapping that makes ``above`` of ``below`` when it is laid over it; null removes."""
    found: dict[str, Node] = {}
    for key in (*above, *(key for key in below if key not in above)):
        lower, upper = below.get(key), above.get(key)
        if isinstance(lower, dict) and isinstance(upper, dict):
            inner = _difference(lower, upper)
            if inner:
                found[key] = inner
        elif lower != upper:
            found[key] = upper
    return found


def _files_of(loaded: LoadedScenario) -> Iterator[tuple[Place, Path]]:
    """Yield the place of every name of a file in a scenario, and the file."""
    found: dict[Place, Path] = {}

    def resolve(place: Place) -> Path:
        found[place] = loaded.resolve(place)
        return found[place]

    for _ in check_references(loaded.scenario, resolve, loaded.part):
        pass
    yield from found.items()


def _put(node: Node, place: Place, text: str, *, make: bool) -> None:
    """Write a text at a place, if something is there; with ``make`` in mappings even if not."""
    *above, last = place
    for part in above:
        if isinstance(node, dict) and isinstance(part, str):
            node = node.setdefault(part, {}) if make else node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            return
    if isinstance(node, dict) and isinstance(last, str) and (make or last in node):
        node[last] = text
    if isinstance(node, list) and isinstance(last, int):
        node[last] = text
