"""Rewriting a scenario file in the newest format: what its old format left unsaid is written out.

Only what has to change is changed: every other character of the file, comments and layout included, stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain as concatenated
from pathlib import Path as FilePath
from typing import Final, NamedTuple

from coordinator.scenario.dump import dump_resolved
from coordinator.scenario.errors import FieldProblemsError, ScenarioError
from coordinator.scenario.extends import Chain, chain_of, read_documents
from coordinator.scenario.formats import FORMAT, OldDefault, written_format
from coordinator.scenario.load import LoadedScenario, checked
from coordinator.scenario.sweep import load_cells
from coordinator.scenario.sweep_section import parse_sweep
from device_profiles.documents import Document, Node, parse_document
from device_profiles.errors import DocumentError, Path, Position

_LINE: Final = re.compile("[^\r\n\x85\u2028\u2029]*(\r\n|[\r\n\x85\u2028\u2029]|$)")
"""A line as YAML counts them, with its end."""
_FORMAT: Final = re.compile(r"""(["']?)[0-9]+\1""")
_NULL: Final = re.compile("null|~")


class Upgrade(NamedTuple):
    """A scenario file in the newest format.

    Attributes
    ----------
    text : its new content; None where it is in the newest format already.
    written : the old defaults that were written out.
    whole : whether it is a scenario by itself, so that old and new text were compared.
    """

    text: str | None
    written: tuple[OldDefault, ...] = ()
    whole: bool = True


class _Text:
    """The text of a file, and what is to be changed in it."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._lines = list(_LINE.finditer(text))
        self._edits: list[tuple[int, int, str]] = []

    def replace(self, path: Path, pattern: re.Pattern[str], new: str) -> None:
        """Put ``new`` in place of the scalar at ``path``, which ``pattern`` matches unless it is empty."""
        start = self._offset(self._document.values[path])
        match = pattern.match(self._text, start)
        if match is not None:
            self._edits.append((start, len(match.group()), new))
        elif path in self._document.keys:
            # What is empty has no place of its own.
            key = self._offset(self._document.keys[path])
            self._edits.append((self._text.index(":", key + len(str(path[-1]))) + 1, 0, f" {new}"))

    def add(self, path: Path, entry: str) -> None:
        """Put an entry at the top of the mapping at ``path``, in the style that the mapping has."""
        start = self._offset(self._document.values[path])
        if self._text.startswith("{", start):
            rest = self._text[start + 1 :].lstrip()
            self._edits.append((start + 1, 0, entry if rest.startswith("}") else f"{entry}, "))
            return
        position = self._document.values[path]
        end = self._lines[position.line - 1].group(1) or "\n"
        self._edits.append((start, 0, f"{entry}{end}{' ' * (position.column - 1)}"))

    def edited(self) -> str:
        """Return the text with all changes made."""
        text = self._text
        for start, length, new in sorted(self._edits, reverse=True):
            text = text[:start] + new + text[start + length :]
        return text

    def _offset(self, position: Position) -> int:
        return self._lines[position.line - 1].start() + position.column - 1


def upgrade(path: FilePath) -> Upgrade:
    """Return a scenario file in the newest format, asking for the same run, and the same cells of its sweep.

    Raises
    ------
    ScenarioError : the file, or one that it extends, cannot be read; or the upgraded text would ask for
        something else.
    """
    problems: list[DocumentError] = []
    try:
        documents, files = read_documents(path, problems)
        if problems:
            raise ScenarioError(problems)
        own, *parents = documents
        chain = chain_of(documents, files)
        loaded = _loaded(chain)
        written = _written_out(chain, loaded, own.file)
        nulls = list(_nulls_of_sweep(chain, own))
        number = written_format(own)
        if (number or FORMAT) == FORMAT and not written and not nulls:
            return Upgrade(None)
        text = _Text(path.read_bytes().decode(), own)
        if number is None:
            text.add((), f"format: {FORMAT}")
        else:
            text.replace(("format",), _FORMAT, str(FORMAT))
        for default in written:
            if default.key in _section(own, default):
                text.replace((default.section, default.key), _NULL, default.value)
            else:
                text.add((default.section,), f"{default.key}: {default.value}")
        for place, default in nulls:
            text.replace(place, _NULL, default.value)
        again = parse_document(text.edited(), own.file)
    except DocumentError as error:
        raise ScenarioError([error]) from None
    again.root.pop("extends", None)
    if written_format(again) != FORMAT or not _same(loaded, _loaded(chain_of([again, *parents], files))):
        defaults = ", ".join(str(default) for default in written) or "nothing more"
        message = f"cannot be upgraded by itself; write 'format: {FORMAT}' and, by hand, {defaults}"
        raise ScenarioError([DocumentError(Position(own.file, 1, 1), ("format",), message)])
    return Upgrade(text.edited(), written, loaded is not None)


def _section(document: Document, default: OldDefault) -> dict[str, Node]:
    section = document.root[default.section]
    assert isinstance(section, dict)
    return section


def _loaded(chain: Chain) -> LoadedScenario | None:
    """Return the scenario of a chain; None where it is none, as what only others extend need not be."""
    try:
        return checked(chain, "", [], references=False)
    except ScenarioError:
        return None


def _written_out(chain: Chain, loaded: LoadedScenario | None, file: str) -> tuple[OldDefault, ...]:
    """Return the old defaults that a file relies on; what is no scenario by itself may rely on any."""
    if loaded is not None:
        return loaded.old_defaults.get(file, ())
    open_gaps = (gap for gap in chain.gaps if gap.is_open(chain.document.root))
    return tuple(gap.default for gap in open_gaps if gap.file == file)


def _nulls_of_sweep(chain: Chain, own: Document) -> Iterator[tuple[Path, OldDefault]]:
    """Yield where a file's sweep takes out a setting that an old default then stands in for."""
    written = own.root.get("sweep")
    if not isinstance(written, dict):
        return
    try:
        axes = parse_sweep(written).axes
    except FieldProblemsError:
        return
    settings = concatenated.from_iterable(concatenated.from_iterable(axes))
    found = {("sweep", *setting.place): setting for setting in settings}
    for place, setting in found.items():
        for default in (gap.default for gap in chain.gaps):
            inside = setting.value if isinstance(setting.value, dict) else {}
            if setting.path == (default.section, default.key) and setting.value is None:
                yield place, default
            elif setting.path == (default.section,) and default.key in inside and inside[default.key] is None:
                yield (*place, default.key), default


def _same(one: LoadedScenario | None, other: LoadedScenario | None) -> bool:
    """Return whether two scenarios, and the cells of their sweeps, ask for the same runs."""
    if one is None or other is None:
        return one is other
    return _asked(one) == _asked(other)


def _asked(loaded: LoadedScenario) -> tuple[str, ...]:
    runs = (run for cell in load_cells(loaded, references=False) for run in cell.runs)
    itself = loaded.scenario.model_copy(update={"sweep": None})
    return dump_resolved(itself), *(run.resolved for run in runs)
