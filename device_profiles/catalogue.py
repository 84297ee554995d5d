"""The catalogue of devices, networks, availability models and fleets, with the source of every number.

The shipped files are in ``device_profiles/catalogue``; files of the same format can be laid over them
(docs/adding-a-profile.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from device_profiles import CATALOGUE_SECTIONS
from device_profiles.availability import AvailabilityProfile
from device_profiles.catalogue_reading import (
    Parsed,
    Profiles,
    nearest,
    read_catalogue,
    source_keys,
)
from device_profiles.documents import MAX_FILE_BYTES, Document, parse_document
from device_profiles.errors import UnknownProfileError
from device_profiles.profile import (
    CryptoProfile,
    DeviceProfile,
    FleetMix,
    NetworkProfile,
    RadioProfile,
    ThermalProfile,
)
from device_profiles.schema import FrozenMap
from device_profiles.shipped_files import shipped_documents

__all__ = ["Catalogue", "ProfileRow", "fleet_names", "load"]

P = TypeVar("P")

ASSUMED: Final = frozenset({"assumption", "unverified"})
"""Keys of the sources that no measurement stands behind."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One line of what a profile says: ``value`` with its unit, as written, and where it comes from.

    ``source`` and ``citation`` are empty for words that need no source, such as the name of an example.
    """

    field: str
    value: str
    source: str
    citation: str

    @property
    def basis(self) -> str:
        """``measured``, ``assumed`` or ``partly assumed``, by the source; empty for words.

        Measured is what another source than an assumption is named for: a measurement, or a figure that the
        source publishes. One without a check of its own (``unverified``) counts as assumed.
        """
        if not self.source:
            return ""
        assumed = [key in ASSUMED for key in source_keys(self.source)]
        return "assumed" if all(assumed) else "partly assumed" if any(assumed) else "measured"


class Catalogue:
    """Profiles by kind and name; immutable."""

    def __init__(self, profiles: Profiles) -> None:
        self.devices: Mapping[str, DeviceProfile] = FrozenMap(profiles.devices)
        self.networks: Mapping[str, NetworkProfile] = FrozenMap(profiles.networks)
        self.availabilities: Mapping[str, AvailabilityProfile] = FrozenMap(profiles.availability)
        self.fleets: Mapping[str, FleetMix] = FrozenMap(profiles.fleets)
        self.radios: Mapping[str, RadioProfile] = FrozenMap(profiles.radios)
        self.thermals: Mapping[str, ThermalProfile] = FrozenMap(profiles.thermal)
        self.cryptos: Mapping[str, CryptoProfile] = FrozenMap(profiles.crypto)
        self.sources: Mapping[str, str] = FrozenMap(profiles.sources)
        self._written = {key: written.content for key, written in profiles.written.items()}
        self._like = {key: written.like for key, written in profiles.written.items()}

    def device(self, name: str) -> DeviceProfile:
        """Return a device profile; raises UnknownProfileError."""
        return _find("device", name, self.devices)

    def network(self, name: str) -> NetworkProfile:
        """Return a network profile; raises UnknownProfileError."""
        return _find("network", name, self.networks)

    def availability(self, name: str) -> AvailabilityProfile:
        """Return an availability profile of any kind; raises UnknownProfileError."""
        return _find("availability", name, self.availabilities)

    def fleet(self, name: str) -> FleetMix:
        """Return a fleet mix; raises UnknownProfileError."""
        return _find("fleet", name, self.fleets)

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names of all profiles, sorted, by section: devices, networks, availability, …."""
        return {
            section: tuple(sorted(name for kind, name in self._written if kind == section))
            for section in CATALOGUE_SECTIONS
        }

    def describe(self, name: str, section: str | None = None) -> tuple[ProfileRow, ...]:
        """Return what a profile says, line by line, what it refers to included (``radio.tail``, …).

        Parameters
        ----------
        name : of a profile of any section.
        section : one of the keys of :meth:`names`; left out, the first that has the name.

        Raises
        ------
        UnknownProfileError : no such profile.
        """
        found = next(
            (s for s in CATALOGUE_SECTIONS if section in (None, s) and (s, name) in self._written), None
        )
        if found is None:
            known = [other for kind, other in self._written if section in (None, kind)]
            raise UnknownProfileError("profile", name, nearest(name, known))
        return tuple(self._rows(found, name, ""))

    def bases(self, section: str, name: str) -> Counter[str]:
        """Return how many of a profile's own numbers have each basis; see :attr:`ProfileRow.basis`.

        Those of what it refers to, such as the radio of a network, are not among them.
        """
        own = self._rows(section, name, "", follow=False)
        return Counter(row.basis for row in own if row.basis)

    def cite(self, source: str) -> str:
        """Return the citations of a source as profiles write it: ``key (note)``, or more joined by ``+``."""
        return "; ".join(self.sources[key] for key in source_keys(source))

    def _rows(self, section: str, name: str, prefix: str, *, follow: bool = True) -> Iterator[ProfileRow]:
        content = self._written[section, name]
        sources = content.get("sources", {})
        like = self._like[section, name]
        if like is not None:
            yield ProfileRow(f"{prefix}like", like, "", "")
        for key, value in content.items():
            if key == "sources":
                continue
            refers_to = {"thermal": "thermal", "crypto": "crypto", "radio": "radios"}.get(key)
            source = "" if key in _WORDS else sources if isinstance(sources, str) else sources.get(key, "")
            citation = self.cite(source) if source else ""
            for field, text in _flat(f"{prefix}{key}", value):
                inside = field.removeprefix(f"{prefix}{key}").split(".")[1:]
                is_word = bool(inside) and (inside[-1] in _INNER_WORDS or inside[0] == "link_trace")
                yield (
                    ProfileRow(field, text, "", "") if is_word else ProfileRow(field, text, source, citation)
                )
            if refers_to and follow:
                yield from self._rows(refers_to, value, f"{prefix}{key}.")


_WORDS: Final = frozenset(
    {
        *("example", "note", "kind", "file", "link_trace", "of"),
        *("thermal", "crypto", "radio", "availability"),
    }
)


_INNER_WORDS: Final = frozenset({"distribution", "device", "network", "availability"})
"""Keys inside those of a profile that hold no number."""


def _flat(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{field}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{field}[{index}]", item)
    elif isinstance(value, list):
        yield field, ", ".join(map(str, value))
    else:
        # An empty value is how a file says "none", as for the battery of a device on mains power.
        yield field, "none" if value is None else str(value)


def _find(kind: str, name: str, profiles: Mapping[str, P]) -> P:
    found = profiles.get(name)
    if found is None:
        raise UnknownProfileError(kind, name, nearest(name, profiles))
    return found


def load(extra: Sequence[Path | Parsed] = ()) -> Catalogue:
    """Return the shipped catalogue, with the profiles of ``extra`` laid over it in order.

    Each of ``extra`` is a file, or what stands in place of one. A profile in a later one takes the place of
    one of the same section and name; profiles that refer to it (a network to its radio, say) then use the new
    one. The shipped catalogue alone is read once a process.

    Raises
    ------
    CatalogueError : with every problem in the files, each at file:line:column.
    """
    return _load(extra) if extra else _shipped()


def fleet_names() -> tuple[str, ...]:
    """Return the names of the fleets in the shipped catalogue, sorted."""
    return load().names()["fleets"]


@lru_cache(maxsize=1)
def _shipped() -> Catalogue:
    return _load(())


def _load(extra: Sequence[Path | Parsed]) -> Catalogue:
    laid_over = (layer if isinstance(layer, Parsed) else _laid_over(layer) for layer in extra)
    return Catalogue(read_catalogue([*_shipped_files(), *laid_over]))


def _laid_over(path: Path) -> Parsed | tuple[Path, str]:
    """Parse a file of profiles; return its path and name where that fails, for `read_catalogue` to report.

    A run reads its files more than once; they are parsed again only if their contents have changed.
    """
    try:
        with path.open("rb") as file:
            document = _document(file.read(MAX_FILE_BYTES + 1), str(path))
    except (OSError, ValueError):
        return path, str(path)
    return Parsed(document, lambda _: path.parent)


@lru_cache(maxsize=16)
def _document(content: bytes, name: str) -> Document:
    return parse_document(content, name)


@lru_cache(maxsize=1)
def _shipped_files() -> tuple[Parsed, ...]:
    """Return the shipped files, read once a process."""
    documents, folder = shipped_documents()
    return tuple(Parsed(document, lambda _: folder) for document in documents)
