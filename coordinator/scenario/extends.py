"""Reading a scenario file together with the files it extends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final, NamedTuple

from coordinator.scenario.errors import did_you_mean
from coordinator.scenario.formats import FORMAT, Gap, gaps, written_format
from coordinator.scenario.merge import merged, without_nulls
from coordinator.scenario.shipped import hint
from device_profiles.documents import Document, read_document
from device_profiles.errors import DocumentError, Position
from device_profiles.quantities import quoted

MAX_CHAIN: Final = 8
"""Files in a chain of ``extends``, the scenario itself included."""


class Chain(NamedTuple):
    """A scenario and the files that it extends.

    Attributes
    ----------
    document : all of them merged, without ``extends``.
    files : the files read, by their name in positions, the scenario first.
    formats : the formats that they say they have; one that says none has that of the file it extends.
    gaps : the old defaults that stand in for what they leave unsaid.
    """

    document: Document
    files: dict[str, FilePath]
    formats: dict[str, int]
    gaps: tuple[Gap, ...]


def read_chain(path: FilePath, problems: list[DocumentError]) -> Chain:
    """Read a scenario and its parents, and merge them; see :func:`read_documents`."""
    return chain_of(*read_documents(path, problems))


def read_documents(
    path: FilePath, problems: list[DocumentError]
) -> tuple[list[Document], dict[str, FilePath]]:
    """Read a scenario and its parents; see :func:`with_parents`."""
    return with_parents(_read(path, [], problems), path, problems)


def with_parents(
    document: Document, path: FilePath, problems: list[DocumentError]
) -> tuple[list[Document], dict[str, FilePath]]:
    """Read the parents of a scenario; ``extends`` is dropped from all, and the scenario is first.

    Parameters
    ----------
    document, path : the scenario; its folder is where the names of its parents start.
    problems : takes errors after which reading goes on.

    Returns
    -------
    The documents, and the files by their name in positions.

    Raises
    ------
    DocumentError : a file that cannot be read, a cycle, or a chain that is too long.
    """
    documents = [document]
    files = {document.file: path}
    seen = [_identity(path)]
    while (parent := _parent(documents[-1], path, seen, problems)) is not None:
        path = parent
        documents.append(_read(path, documents, problems))
        files[documents[-1].file] = path
        seen.append(_identity(path))
    return documents, files


def chain_of(documents: Sequence[Document], files: dict[str, FilePath]) -> Chain:
    """Return what parsed files come to, the scenario first, without ``extends`` in any."""
    formats: dict[str, int] = {}
    readers: list[tuple[int, Document]] = []
    number = FORMAT
    for document in reversed(documents):
        said = written_format(document)
        if said is not None:
            formats[document.file] = number = said
        readers.append((number, document))
    *children, oldest = documents
    result = without_nulls(oldest)
    for child in reversed(children):
        result = merged(result, child)
    if written_format(result) is not None:
        # What an older format means is in the gaps.
        result.root["format"] = str(FORMAT)
    return Chain(result, files, formats, gaps(readers))


def _identity(path: FilePath) -> str:
    return os.path.realpath(path)


def _read(path: FilePath, children: list[Document], problems: list[DocumentError]) -> Document:
    # Not Path.exists(): that raises for a name that no file can have, such as a very long one.
    if not children or os.path.isfile(path):
        try:
            return read_document(path, problems=problems)
        except DocumentError as error:
            if os.path.exists(path):
                raise
            raise DocumentError(error.position, error.path, error.message, hint(str(path))) from None
    child = children[-1]
    if os.path.exists(path):
        raise _wrong(child.position(("extends",)), f"{quoted(path)} is no file; name the scenario in it")
    # The value was removed from the child's root; its place is still known.
    raise DocumentError(
        child.position(("extends",)), ("extends",), f"there is no such file {quoted(path)}", _sibling(path)
    )


def _sibling(path: FilePath) -> str | None:
    """Return a hint at a scenario beside the missing file with a similar name."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return None
    return did_you_mean(path.name, names)


def _parent(
    document: Document, path: FilePath, seen: list[str], problems: list[DocumentError]
) -> FilePath | None:
    """Return the file that a document extends and drop the key; None where it extends none."""
    written = document.root.pop("extends", None)
    if written is None:
        return None
    position = document.position(("extends",))
    if not isinstance(written, str):
        problems.append(_wrong(position, "one file name belongs here; write 'extends: base.yaml'"))
        return None
    parent = FilePath(os.path.normpath(path.parent / written))
    if _identity(parent) in seen:
        names = [FilePath(name).name for name in (*seen[seen.index(_identity(parent)) :], _identity(parent))]
        raise _wrong(position, f"the scenario extends itself: {' -> '.join(names)}; remove one 'extends'")
    if len(seen) >= MAX_CHAIN:
        raise _wrong(position, f"more than {MAX_CHAIN} files extend each other; merge some of them")
    return parent


def _wrong(position: Position, message: str) -> DocumentError:
    return DocumentError(position, ("extends",), message)
