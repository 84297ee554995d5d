"""Building one document from several: a child over its parent, and settings from the command line.

Mappings merge, everything else replaces, and null removes what was inherited. Every value keeps the place
where it was written.
"""

from __future__ import annotations

import json
import os
import re
from collections import abc
from typing import Final, TypeAlias

import numpy as np

from device_profiles.documents import Document, Node, parse_document
from device_profiles.errors import DocumentError, Path, Position, format_path
from device_profiles.quantities import quoted

Mapping: TypeAlias = dict[str, Node]

COMMAND_LINE: Final = "--set"
"""The file name in positions of values from the command line; the line is the number of the option."""

_PROFILES: Final = ("fleet", "profiles")

_OPENING: Final = "[{\"'"
"""With one of these begins a value of the command line that is YAML."""
_SEGMENT: Final = re.compile(r'\.?(?:"((?:[^"\\]|\\.)*)"|([^."\[\]\s=]+))|\[([0-9]{1,6})\]')


def merged(parent: Document, child: Document) -> Document:
    """Return ``child`` laid over ``parent``."""
    result = Document(child.file, {})
    result.values[()] = child.values.get((), Position(child.file, 1, 1))
    _merge_mappings(parent, child, result, (), (parent.root, child.root, result.root))
    return result


def without_nulls(document: Document) -> Document:
    """Return a document that inherits nothing: null removes its own key."""
    return merged(Document(document.file, {}), document)


def _merge_mappings(
    parent: Document, child: Document, result: Document, path: Path, nodes: tuple[Mapping, Mapping, Mapping]
) -> None:
    """Merge the mappings at ``path``: ``nodes`` are the parent's, the child's and the one to fill."""
    below, above, into = nodes
    # The parent's order first: a child that changes one value leaves the file's order alone.
    for key in (*below, *(key for key in above if key not in below)):
        here = (*path, key)
        if key not in above:
            if below[key] is not None or _keeps_null(here):
                _note(parent, here, result)
                into[key] = _copied(parent, below[key], here, result)
            continue
        upper = above[key]
        if upper is None and not _keeps_null(here):
            continue
        lower = below.get(key)
        _note(child, here, result)
        if isinstance(upper, dict) and isinstance(lower, dict):
            inner: dict[str, Node] = {}
            into[key] = inner
            _merge_mappings(parent, child, result, here, (lower, upper, inner))
        else:
            into[key] = _copied(child, upper, here, result)


def _copied(source: Document, node: Node, path: Path, result: Document) -> Node:
    """Return a copy of a subtree, without nulls in mappings; the places go to ``result``."""
    if isinstance(node, dict):
        copy: dict[str, Node] = {}
        for key, value in node.items():
            here = (*path, key)
            if value is not None or _keeps_null(here):
                _note(source, here, result)
                copy[key] = _copied(source, value, here, result)
        return copy
    if isinstance(node, list):
        items: list[Node] = []
        for index, value in enumerate(node):
            _note(source, (*path, index), result)
            items.append(_copied(source, value, (*path, index), result))
        return items
    return node


def _keeps_null(path: Path) -> bool:
    """Tell whether null at ``path`` is a value, and removes nothing that is inherited.

    It is in the cells of a sweep, that of a setting which removes something in one cell, and inside a
    profile, where it removes a key of the profile that this one is like.
    """
    if path[0] == "sweep" and len(path) > 2:
        return path[1] == "cells" or str(path[1]).startswith(".".join(_PROFILES))
    # In a mapping of profiles, section and name come first; a list replaces, so nothing is inherited.
    return path[:2] == _PROFILES and (len(path) > 4 or (len(path) > 2 and isinstance(path[2], int)))


def _note(source: Document, path: Path, result: Document) -> None:
    if path in source.keys:
        result.keys[path] = source.keys[path]
    if path in source.values:
        result.values[path] = source.values[path]


def plain(value: object, path: Path = ()) -> object:
    """Return a value of Python as JSON has it; numbers of numpy and paths of files are taken, too.

    Raises
    ------
    TypeError : a key or a value, ``path`` leads to it, that no YAML file could hold.
    """
    if isinstance(value, abc.Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{format_path(path) or 'the scenario'}: {key!r} is no key; write text")
        return {key: plain(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(inner, (*path, at)) for at, inner in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value).__name__
    raise TypeError(
        f"{format_path(path)}: {kind} is none of the types of a scenario; write text, a number or a list"
    )


def override_text(key: str, value: object) -> str:
    """Return a setting of Python as :func:`with_override` takes it.

    Raises
    ------
    TypeError : a value that no YAML file could hold.
    """
    made = plain(value)
    if isinstance(made, str) and _is_taken_as_it_stands(made):
        return f"{key}={made}"
    return f"{key}={json.dumps(made, ensure_ascii=False)}"


def _is_taken_as_it_stands(text: str) -> bool:
    return text == text.strip() and text not in ("", "null", "~") and text[0] not in _OPENING


def with_override(document: Document, number: int, text: str) -> Document:
    """Return a document with one ``--set`` applied.

    Parameters
    ----------
    document : what the setting is laid over.
    number : of the option, from 1; the line in positions.
    text : ``path=value``, for example ``rounds.deadline=45 s``, ``phases[0].rounds=3`` or
        ``thresholds."round.completed"=[rate >= 90%]``. Text that starts with ``[``, ``{`` or a quotation mark
        is YAML; anything else is taken as it stands. ``null`` or nothing removes.

    Raises
    ------
    DocumentError : malformed, or a path that leads through something that is no mapping or list.
    """
    path, value, positions = parse_override(COMMAND_LINE, number, text)
    return with_value(document, path, value, positions)


def parse_override(option: str, number: int, text: str) -> tuple[Path, Node, tuple[Position, Position]]:
    """Return what ``path=value`` on the command line says: the path, the value, and the places of both.

    Parameters
    ----------
    option : that it follows; the file in positions.
    number, text : as for :func:`with_override`.

    Raises
    ------
    DocumentError : malformed.
    """
    path, start = _parse_path(option, number, text)
    position = Position(option, number, start + 1)
    return path, _parse_value(text[start:], path, position), (Position(option, number, 1), position)


def with_setting(document: Document, path: Path, value: Node, place: Path) -> Document:
    """Return a document with a value laid over it that is written elsewhere in it.

    Parameters
    ----------
    document : what the setting is laid over.
    path : of the setting.
    value : what to put there; None removes.
    place : path of the value in the document; errors about it are shown there.

    Raises
    ------
    DocumentError : a path that leads through something that is no mapping or list.
    """
    # In a list of values the key is that of the list.
    key_place = place if place in document.keys else place[:-1]
    positions = (document.position(key_place, of_key=True), document.position(place))
    result = with_value(document, path, value, positions)
    for known, placed in ((document.keys, result.keys), (document.values, result.values)):
        for written, position in known.items():
            inner = (*path, *written[len(place) :])
            if len(inner) > len(path) and written[: len(place)] == place and inner in placed:
                placed[inner] = position
    return result


def with_value(document: Document, path: Path, value: Node, positions: tuple[Position, Position]) -> Document:
    """Return a document with ``value`` at ``path``; ``positions`` are of its key and of itself.

    Raises
    ------
    DocumentError : a path that leads through something that is no mapping or list.
    """
    key_position, position = positions
    result = without_nulls(document)
    node: Node = result.root
    for index, part in enumerate(path[:-1]):
        here = path[: index + 1]
        if isinstance(node, dict) and isinstance(part, str) and part not in node:
            node[part] = [] if isinstance(path[index + 1], int) else {}
            result.keys[here], result.values[here] = key_position, position
        node = _child(node, part, here, key_position)
    _assign(result, node, path, value, (key_position, position))
    return result


def _parse_path(option: str, number: int, text: str) -> tuple[Path, int]:
    """Return the path before the first ``=`` that is not in quotes, and where the value starts."""
    path, at = _leading_path(text)
    at += len(text[at:]) - len(text[at:].lstrip(" "))
    if not path or at >= len(text) or text[at] != "=":
        message = f"{quoted(text)} is not a setting; write it like 'rounds.cohort=50'"
        raise DocumentError(Position(option, number, at + 1), (), message)
    return path, at + 1


def parse_setting_path(text: str) -> Path | None:
    """Return the path that a text such as ``phases[0].rounds`` names, or None if it is none."""
    path, end = _leading_path(text)
    return path if path and end == len(text) else None


def _leading_path(text: str) -> tuple[Path, int]:
    """Return the path with which a text begins, and where it ends."""
    path: list[str | int] = []
    at = 0
    while at < len(text) and text[at] not in "= ":
        match = _SEGMENT.match(text, at)
        if match is None or (path == [] and match.group(3) is not None):
            break
        name, bare, index = match.groups()
        if index is not None:
            path.append(int(index))
        else:
            path.append(bare if name is None else re.sub(r"\\(.)", r"\1", name))
        at = match.end()
    return tuple(path), at


def _parse_value(text: str, path: Path, position: Position) -> Node:
    stripped = text.strip()
    if stripped in ("", "null", "~"):
        return None
    if stripped[0] in _OPENING:
        try:
            return parse_document(f"value: {stripped}\n", COMMAND_LINE).root["value"]
        except DocumentError as error:
            # Where it is in the made-up document would mislead.
            raise DocumentError(position, path, error.message, error.suggestion) from None
    if not stripped.isprintable():
        raise DocumentError(position, path, f"{quoted(stripped)} holds characters that cannot be printed")
    return stripped


def _child(node: Node, part: str | int, path: Path, position: Position) -> Node:
    if isinstance(node, dict) and isinstance(part, str):
        return node[part]
    if isinstance(node, list) and isinstance(part, int):
        if part < len(node):
            return node[part]
        raise DocumentError(position, path, f"the list has {len(node)} entries; the first is [0]")
    kind = "a mapping" if isinstance(node, dict) else "a list" if isinstance(node, list) else "a single value"
    wanted = "an index" if isinstance(part, int) else "a key"
    raise DocumentError(position, path, f"{wanted} is asked of {kind}")


def _assign(
    result: Document, node: Node, path: Path, value: Node, positions: tuple[Position, Position]
) -> None:
    """Put ``value`` at ``path``, whose container is ``node``; a mapping merges with the one it meets."""
    key_position, position = positions
    part = path[-1]
    if isinstance(node, dict) and isinstance(part, str):
        previous = node.get(part)
        if isinstance(previous, dict) and isinstance(value, dict):
            for key, inner in value.items():
                _assign(result, previous, (*path, key), inner, positions)
            return
        node.pop(part, None)
        _forget(result, path)
        if value is None and not _keeps_null(path):
            return
        node[part] = value
        result.keys[path] = key_position
    else:
        _child(node, part, path, key_position)
        assert isinstance(node, list)
        assert isinstance(part, int)
        _forget(result, path)
        node[part] = value
    _place(result, value, path, position)


def _forget(result: Document, path: Path) -> None:
    for table in (result.keys, result.values):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]


def _place(result: Document, node: Node, path: Path, position: Position) -> None:
    """Say that everything in a subtree stands at ``position``."""
    result.values[path] = position
    if isinstance(node, dict):
        for key, value in node.items():
            result.keys[(*path, key)] = position
            _place(result, value, (*path, key), position)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            _place(result, value, (*path, index), position)
