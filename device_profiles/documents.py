"""YAML documents that keep every scalar as text and remember where everything was written.

A document is plain ``dict``, ``list``, ``str`` and ``None``. Text stays exactly as written (``no``, ``1e-3``,
``010`` and ``1:30`` are four pieces of text), because only the schema knows what a value should be. An empty
value and the unquoted words ``null`` and ``~`` are None; nothing else is.

Only the part of YAML that a configuration needs is accepted: one UTF-8 document whose root is a mapping, with
unique text keys, without tags, anchors, aliases or directives, and within limits on size, depth and number of
nodes. Everything else is a :class:`DocumentError` that says where and what to write instead; no input raises
anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, NoReturn, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from device_profiles.errors import DocumentError, Path, Position

__all__ = [
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "MAX_LINE_CHARACTERS",
    "MAX_NODES",
    "Document",
    "Node",
    "parse_document",
    "read_document",
]
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_LINE_CHARACTERS: Final = 16_384
"""Longer lines are no configuration, and some take the parser time that grows with their square."""
MAX_DEPTH: Final = 32
MAX_NODES: Final = 50_000
Node: TypeAlias = "dict[str, Node] | list[Node] | str | None"
# What YAML 1.2 (production 1) leaves out. The set of what it allows would take 9 ms to compile.
_UNPRINTABLE: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_LONG_LINE: Final = re.compile(f"[^\\r\\n]{{{MAX_LINE_CHARACTERS + 1}}}")
_NULLS: Final = ("", "null", "~")


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed document.

    Attributes
    ----------
    file : the name shown in positions.
    root : the content: mappings, lists, text and None.
    keys : where the key of each mapping entry stands.
    values : where each value starts, the root included (path ``()``).
    within : for a part of a larger document, the path of its root there.
    """

    file: str
    root: dict[str, Node]
    keys: dict[Path, Position] = field(default_factory=dict)
    values: dict[Path, Position] = field(default_factory=dict)
    within: Path = ()

    def position(self, path: Path, *, of_key: bool = False) -> Position:
        """Return where the value (or the key) at ``path`` stands, else the nearest one above it."""
        if of_key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
            # What is missing is missing from the entry named by this key.
            if path in self.keys:
                return self.keys[path]
        return self.values.get(path, Position(self.file, 1, 1))

    def part(self, path: Path) -> Document:
        """Return the mapping at ``path`` as a document of its own, with the places that it has in this one.

        Raises
        ------
        LookupError : there is no mapping at ``path``.
        """
        node: Any = self.root
        for key in path:
            node = node[key]
        if not isinstance(node, dict):
            raise LookupError(f"the document has no mapping at {path!r}")
        depth = len(path)
        keys = {known[depth:]: at for known, at in self.keys.items() if known[:depth] == path}
        # The key of the part itself is none of its own.
        keys.pop((), None)
        values = {known[depth:]: at for known, at in self.values.items() if known[:depth] == path}
        return Document(self.file, node, keys, values, (*self.within, *path))


def read_document(
    path: FilePath, *, name: str | None = None, problems: list[DocumentError] | None = None
) -> Document:
    """Read a YAML file.

    Parameters
    ----------
    path : the file.
    name : how to call it in positions; its path by default.
    problems : see :func:`parse_document`.

    Raises
    ------
    DocumentError : unreadable, larger than 1 MiB, or as :func:`parse_document`.
    """
    shown = str(path) if name is None else name
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise DocumentError(Position(shown, 1, 1), (), "there is no such file") from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL character in the path.
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(Position(shown, 1, 1), (), f"cannot be read: {reason}") from None
    return parse_document(content, shown, problems=problems)


def parse_document(
    content: bytes | str, file: str, *, problems: list[DocumentError] | None = None
) -> Document:
    """Parse the bytes (or the text) of one YAML document.

    Parameters
    ----------
    content : the whole file.
    file : its name in positions.
    problems : where given, errors after which reading can go on (duplicate keys) are added to it instead of
        being raised, so that they can be shown together with what the schema finds.

    Raises
    ------
    DocumentError : for anything that is not an acceptable document.
    """
    text = _decode(content, file) if isinstance(content, bytes) else content
    if len(text) > MAX_FILE_BYTES:
        raise DocumentError(
            Position(file, 1, 1), (), f"larger than {MAX_FILE_BYTES} bytes (1 MiB), the limit of a document"
        )
    _refuse_characters(text, file)
    _refuse_long_lines(text, file)
    builder = _Builder(file, problems)
    for event in _events(text, builder):
        builder.take(event)
    return builder.finish()


def _decode(content: bytes, file: str) -> str:
    start = Position(file, 1, 1)
    if len(content) > MAX_FILE_BYTES:
        raise DocumentError(start, (), f"larger than {MAX_FILE_BYTES} bytes (1 MiB), the limit of a document")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError(start, (), "the file is in UTF-16 or UTF-32; save it as UTF-8")
    if content.startswith(b"\xef\xbb\xbf"):
        raise DocumentError(start, (), "the file starts with a byte order mark; save it as UTF-8 without BOM")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        wrong = content[error.start]
        raise DocumentError(
            _position_in(before, file), (), f"byte 0x{wrong:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def _position_in(before: str, file: str) -> Position:
    """Return the position just after the text ``before``."""
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return Position(file, len(lines), len(lines[-1]) + 1)


def _refuse_characters(text: str, file: str) -> None:
    found = _UNPRINTABLE.search(text)
    if found:
        code = ord(found.group())
        hint = "; is the file UTF-16? save it as UTF-8" if code == 0 else "; remove it"
        where = _position_in(text[: found.start()], file)
        raise DocumentError(where, (), f"character U+{code:04X} does not belong in a text file{hint}")


def _refuse_long_lines(text: str, file: str) -> None:
    found = _LONG_LINE.search(text)
    if found:
        message = f"a line of more than {MAX_LINE_CHARACTERS} characters, the limit of a document; break it"
        raise DocumentError(_position_in(text[: found.start()], file), (), message)


def _events(text: str, builder: _Builder) -> Iterator[Event]:
    """Yield the parser's events; whatever the parser raises becomes a DocumentError."""
    # The pure parser gives exact marks, and does not look at what a scalar might mean.
    parser = YAML(typ="safe", pure=True)
    try:
        yield from parser.parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = builder.position(mark) if mark is not None else builder.last
        raise DocumentError(position, builder.path(), _explain(error, text, mark)) from None
    except (YAMLError, AssertionError) as error:
        # The parser asserts on a version it does not know.
        raise DocumentError(builder.last, builder.path(), f"not valid YAML: {error}") from None
    except (ValueError, OverflowError):
        # An escape such as "\U99999999" makes the parser ask for a character that does not exist.
        message = "not valid YAML: an escape after this place stands for no character"
        raise DocumentError(builder.last, builder.path(), message) from None


def _explain(error: MarkedYAMLError, text: str, mark: Any) -> str:
    """Return the parser's complaint in words that say what to do."""
    problem = str(error.problem or error.context or "not valid YAML").split("\n", maxsplit=1)[0]
    character = text[mark.index : mark.index + 1] if mark is not None else ""
    if character == "\t":
        return "a tab cannot indent or separate here; use spaces"
    if "could not find expected ':'" in problem:
        return "a key without ':'; write 'key: value'"
    if "mapping values are not allowed" in problem:
        return "a ':' is not allowed here; indent nested keys, or put the value in quotes"
    if "cannot start any token" in problem:
        return f"a value cannot start with {character!r}; put it in quotes"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"not valid YAML: {problem}{context}"


@dataclass(slots=True)
class _Open:
    """A mapping or list being read; ``key`` waits for its value, in a mapping only."""

    path: Path
    content: dict[str, Node] | list[Node]
    key: str | None = None
    duplicates: int = 0


class _Builder:
    """Builds a document from events, with a stack of its own: depth costs no recursion."""

    def __init__(self, file: str, problems: list[DocumentError] | None) -> None:
        self._file = file
        self._problems = problems
        self._stack: list[_Open] = []
        self._root: dict[str, Node] | None = None
        self._documents = 0
        self._nodes = 0
        self._keys: dict[Path, Position] = {}
        self._values: dict[Path, Position] = {}
        self.last = Position(file, 1, 1)

    def position(self, mark: Any) -> Position:
        return Position(self._file, mark.line + 1, mark.column + 1)

    def path(self) -> Path:
        """Return the path of the value that is read next, or of what contains it."""
        if not self._stack:
            return ()
        top = self._stack[-1]
        if isinstance(top.content, list):
            return (*top.path, len(top.content))
        return top.path if top.key is None else (*top.path, top.key)

    def take(self, event: Event) -> None:
        """Take the next event of the parser."""
        self.last = self.position(event.start_mark)
        if isinstance(event, DocumentStartEvent):
            self._start_document(event)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            self._stack.pop()
        elif isinstance(event, AliasEvent):
            self._refuse("aliases ('*name') are not supported; write the value itself, or quote the text")
        elif isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent):
            self._node(event)

    def finish(self) -> Document:
        """Return the document.

        Raises
        ------
        DocumentError : nothing in the file.
        """
        if self._root is None:
            raise DocumentError(Position(self._file, 1, 1), (), "the file is empty; write 'key: value' lines")
        return Document(self._file, self._root, self._keys, self._values)

    def _refuse(self, message: str) -> NoReturn:
        raise DocumentError(self.last, self.path(), message)

    def _start_document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            self._refuse("a second document starts here ('---'); a file holds one")
        if event.version is not None or event.tags:
            self._refuse("directives ('%YAML', '%TAG') are not supported; remove the line")

    def _node(self, event: Any) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES} values, the limit of a document")
        if event.anchor is not None:
            self._refuse("anchors ('&name') are not supported; write the value where it is needed")
        # '!' alone only says "not resolved", still nothing a configuration needs.
        if getattr(event, "ctag", None) is not None:
            self._refuse(f"tags such as {str(event.ctag)[:40]!r} are not supported; write plain text")
        if not self._stack and not isinstance(event, MappingStartEvent):
            if isinstance(event, ScalarEvent) and event.value == "" and event.style is None:
                self._refuse("the file is empty; write 'key: value' lines")
            found = "a list" if isinstance(event, SequenceStartEvent) else "a single value"
            self._refuse(f"the file holds {found} where a mapping belongs; write 'key: value' lines")
        if self._stack and isinstance(self._stack[-1].content, dict) and self._stack[-1].key is None:
            self._take_key(event)
            return
        path = self.path()
        self._values[path] = self.last
        if isinstance(event, ScalarEvent):
            self._place(self._text(event))
            return
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels, the limit of a document")
        content: dict[str, Node] | list[Node] = {} if isinstance(event, MappingStartEvent) else []
        if not self._stack and isinstance(content, dict):
            self._root = content
        else:
            self._place(content)
        self._stack.append(_Open(path, content))

    def _text(self, event: Any) -> str | None:
        plain = event.style is None or event.style == ""
        if plain and event.value in _NULLS:
            return None
        text = str(event.value)
        found = _UNPRINTABLE.search(text)
        if found:
            self._refuse(f"the text contains the character U+{ord(found.group()):04X}; remove the escape")
        return text

    def _take_key(self, event: Any) -> None:
        if not isinstance(event, ScalarEvent):
            self._refuse("a key must be plain text, not a mapping or a list; put it in quotes")
        key = self._text(event)
        if key is None:
            self._refuse("an empty key; write 'key: value'")
        if "\n" in key:
            self._refuse("a key is one line; remove the line break")
        top = self._stack[-1]
        assert isinstance(top.content, dict)
        path = (*top.path, key)
        if path in self._keys:
            first = self._keys[path]
            problem = DocumentError(
                self.last,
                path,
                f"duplicate key; it was first given at line {first.line}; keep one of the two",
            )
            if self._problems is None:
                raise problem
            self._problems.append(problem)
            # The entry is read, and dropped, under a name that no key can have.
            top.duplicates += 1
            key = f"{key}\n{top.duplicates}"
        else:
            self._keys[path] = self.last
        top.key = key

    def _place(self, value: Node) -> None:
        """Put a value where it belongs in the innermost open mapping or list."""
        top = self._stack[-1]
        if isinstance(top.content, list):
            top.content.append(value)
            return
        assert top.key is not None
        if (*top.path, top.key) in self._keys:
            top.content[top.key] = value
        top.key = None
