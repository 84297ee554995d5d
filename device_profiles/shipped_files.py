"""The shipped catalogue files, parsed ahead; their YAML is read for places in it, and when it has changed.

``catalogue/parsed.json`` holds what is in the files, and the hash of each. After a change of
a file it is written anew by::

    python -m device_profiles.shipped_files
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from device_profiles.documents import Document, parse_document
from device_profiles.errors import Path as KeyPath
from device_profiles.errors import Position

SHIPPED: Final = (
    "sources.yaml",
    "thermal.yaml",
    "crypto.yaml",
    "radios.yaml",
    "devices.yaml",
    "networks.yaml",
    "availability.yaml",
    "fleets.yaml",
)
PARSED: Final = "parsed.json"


@dataclass(frozen=True)
class ParsedAhead(Document):
    """A document whose content is known; its text is parsed when a place in it is asked for."""

    content: bytes = b""

    @cached_property
    def _whole(self) -> Document:
        return parse_document(self.content, self.file)

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position:
        """Return where the value (or the key) at ``path`` stands, else the nearest one above it."""
        return self._whole.position(path, of_key=of_key)

    def part(self, path: KeyPath) -> Document:
        """Return the mapping at ``path`` as a document of its own, with its places in this one."""
        return self._whole.part(path)


@lru_cache(maxsize=1)
def shipped_documents() -> tuple[tuple[Document, ...], Path]:
    """Return the shipped files and their folder, read once a process."""
    with as_file(files("device_profiles") / "catalogue") as folder:
        known = json.loads((folder / PARSED).read_text(encoding="utf-8"))
        return tuple(_document(folder / name, known.get(name)) for name in SHIPPED), folder


def _document(path: Path, known: dict[str, object] | None) -> Document:
    content, shown = path.read_bytes(), f"device_profiles/catalogue/{path.name}"
    if known is None or known["sha256"] != _hash(content):
        return parse_document(content, shown)
    return ParsedAhead(shown, known["root"], content=content)  # type: ignore[arg-type]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def parsed(folder: Path) -> str:
    """Return what ``parsed.json`` is to hold of the files in a folder."""
    contents = {name: (folder / name).read_bytes() for name in SHIPPED}
    found = {
        name: {"sha256": _hash(content), "root": parse_document(content, name).root}
        for name, content in contents.items()
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def write_parsed() -> None:
    """Write ``parsed.json`` anew."""
    folder = Path(__file__).parent / "catalogue"
    (folder / PARSED).write_text(parsed(folder), encoding="utf-8")


if __name__ == "__main__":
    write_parsed()
