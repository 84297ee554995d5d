"""From catalogue files to frozen profiles, with every problem at its place in the file."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from device_profiles import CATALOGUE_SECTIONS
from device_profiles.availability import (
    AVAILABILITY_SECTIONS,
    AvailabilityProfile,
    AvailabilitySection,
    CombinedSection,
)
from device_profiles.documents import Document, read_document
from device_profiles.errors import CatalogueError, DocumentError, Path, ProfileError, TraceError
from device_profiles.importers.link_files import trace_beside
from device_profiles.profile import (
    CryptoProfile,
    CryptoSection,
    DeviceProfile,
    DeviceSection,
    FleetGroup,
    FleetMix,
    FleetSection,
    FleetShare,
    NetworkProfile,
    NetworkSection,
    RadioProfile,
    RadioSection,
    ThermalProfile,
    ThermalSection,
    beside_groups,
    problem_of,
)
from device_profiles.quantities import UnitError
from device_profiles.schema import ProfileSection, needs_source, spread_sources

MAX_CHAIN: Final = 8
"""Profiles in a chain of ``like``, the one that begins it included."""
_SINGULAR: Final = {
    "devices": "device",
    "networks": "network",
    "availability": "availability",
    "fleets": "fleet",
    "radios": "radio",
    "thermal": "thermal profile",
    "crypto": "crypto profile",
}
_BETWEEN_SOURCES: Final = re.compile(r" \+ (?![^()]*\))")
"""A plus sign outside the brackets of a note."""
S = TypeVar("S", bound=ProfileSection)
P = TypeVar("P")
_SECTION_MODELS: Final[dict[str, type[ProfileSection]]] = {
    "thermal": ThermalSection,
    "crypto": CryptoSection,
    "radios": RadioSection,
    "devices": DeviceSection,
    "networks": NetworkSection,
    "fleets": FleetSection,
}


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


@dataclass(frozen=True, slots=True)
class Written:
    """A profile as it stands in a file.

    Attributes
    ----------
    document, path : where it stands. folder : where the names of files in it start.
    content : its keys, those that it takes from the profile it is like included once it is built.
    replaces : the profile of the same name in an earlier file, or None.
    like : the name of the profile that it is like, or None; set once it is built.
    """

    document: Document
    folder: FilePath
    path: Path
    content: dict[str, Any]
    replaces: Written | None = None
    like: str | None = None

    @property
    def name(self) -> str:
        """The name of the profile."""
        return str(self.path[1])

    @property
    def model(self) -> type[ProfileSection]:
        """The model of its keys; of availability of an unknown kind, what all kinds share."""
        if self.path[0] != "availability":
            return _SECTION_MODELS[str(self.path[0])]
        return AVAILABILITY_SECTIONS.get(str(self.content.get("kind")), AvailabilitySection)


@dataclass(slots=True)
class Profiles:
    """Everything that was read: profiles by name, sources by key, and what was written for each profile."""

    devices: dict[str, DeviceProfile] = field(default_factory=dict)
    networks: dict[str, NetworkProfile] = field(default_factory=dict)
    availability: dict[str, AvailabilityProfile] = field(default_factory=dict)
    fleets: dict[str, FleetMix] = field(default_factory=dict)
    radios: dict[str, RadioProfile] = field(default_factory=dict)
    thermal: dict[str, ThermalProfile] = field(default_factory=dict)
    crypto: dict[str, CryptoProfile] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    written: dict[tuple[str, str], Written] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What stands in place of a catalogue file: one that was parsed, or a part of another document.

    Attributes
    ----------
    document : in the form of a catalogue file.
    folder : gives, by a path in the document, where the name of a file that stands there starts.
    """

    document: Document
    folder: Callable[[Path], FilePath]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` most likely meant, or None."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else None


def source_keys(text: str) -> list[str]:
    """Return the source keys in ``key``, ``key (note)`` or several of them joined by `` + ``."""
    return [part.split("(", 1)[0].strip() for part in _BETWEEN_SOURCES.split(text)]


def read_catalogue(layers: Sequence[tuple[FilePath, str] | Parsed]) -> Profiles:
    """Read catalogue files; a later file's profile takes the place of an earlier one of the same name.

    Parameters
    ----------
    layers : path of each file and how to call it in messages, or what stands in place of a file.

    Raises
    ------
    CatalogueError : with every problem found, each at file:line:column.
    """
    reader = _CatalogueReader()
    for layer in layers:
        if isinstance(layer, Parsed):
            reader.take(layer.document, layer.folder)
        else:
            reader.take_file(*layer)
    # What is missing because a file could not be read is not worth reporting.
    profiles = reader.profiles if reader.unreadable else reader.build()
    if reader.problems:
        names = [layer.document.file if isinstance(layer, Parsed) else layer[1] for layer in layers]
        order = {name: index for index, name in enumerate(names)}
        raise CatalogueError(
            sorted(
                reader.problems,
                key=lambda p: (order.get(p.position.file, 0), p.position.line, p.position.column),
            )
        )
    return profiles


class _CatalogueReader:
    def __init__(self) -> None:
        self.problems: list[DocumentError] = []
        self._reported: set[str] = set()
        self.unreadable = False
        self.profiles = Profiles()
        self._written: dict[str, dict[str, Written]] = {section: {} for section in CATALOGUE_SECTIONS}

    # Reading

    def take_file(self, path: FilePath, name: str) -> None:
        """Take the profiles of one file, as they are written."""
        try:
            document = read_document(path, name=name, problems=self.problems)
        except DocumentError as error:
            self.problems.append(error)
            self.unreadable = True
            return
        self.take(document, lambda _: path.parent)

    def take(self, document: Document, folder: Callable[[Path], FilePath]) -> None:
        """Take the profiles of a document, as they are written; ``folder`` is as :class:`Parsed` has it."""
        for section, content in document.root.items():
            if section == "sources":
                self._take_sources(document, content)
            elif section in CATALOGUE_SECTIONS:
                self._take_section(document, folder, section, content)
            else:
                known = nearest(section, (*CATALOGUE_SECTIONS, "sources"))
                hint = (
                    f"did you mean {known!r}?"
                    if known
                    else f"write one of {', '.join(CATALOGUE_SECTIONS)}, sources"
                )
                self._problem(document, (section,), "unknown section", hint, of_key=True)

    def _take_sources(self, document: Document, content: object) -> None:
        if not isinstance(content, dict):
            self._problem(document, ("sources",), "expected a mapping; write 'key: citation' lines")
            return
        for key, citation in content.items():
            if not isinstance(citation, str) or not citation.strip():
                self._problem(document, ("sources", key), "expected a citation as text")
            elif not key.replace("_", "").replace("-", "").isalnum():
                message = "a source key has letters, digits, '_' and '-' only"
                self._problem(document, ("sources", key), message, of_key=True)
            else:
                self.profiles.sources[key] = citation

    def _take_section(
        self, document: Document, folder: Callable[[Path], FilePath], section: str, content: object
    ) -> None:
        if not isinstance(content, dict):
            message = f"expected a mapping; write the name of each {_SINGULAR[section]} and its keys below"
            self._problem(document, (section,), message)
            return
        for name, profile in content.items():
            path = (section, name)
            if isinstance(profile, dict):
                before = self._written[section].get(name)
                content, start = _from_one_folder(profile, _FILES[section], path, folder)
                self._written[section][name] = Written(document, start, path, content, before)
            else:
                self._problem(document, path, "expected a mapping; write the profile's keys below its name")

    # Building, in the order in which profiles name each other

    def build(self) -> Profiles:
        """Build every profile that can be built."""
        made = self.profiles
        for section in ("thermal", "crypto", "radios", "devices", "networks"):
            model = _SECTION_MODELS[section]
            self._each(section, getattr(made, section), functools.partial(self._plain, model))
        self._each("availability", made.availability, self._availability)
        self._each("fleets", made.fleets, self._fleet)
        return made

    def _each(self, section: str, into: dict[str, P], make: Callable[[str, Written], P | None]) -> None:
        here = self._written[section]
        lines = [line for line in map(self._line, here.values()) if line]
        # A combined one is made of others; otherwise those that are like others come after them.
        for line in sorted(lines, key=lambda line: (line[-1].content.get("kind") == "combined", len(line))):
            # What is wrong with a profile is not reported again for those that are like it.
            if any(here[other.name] is other and other.name not in into for other in line[1:]):
                continue
            name, written = line[0].name, _resolved(line)
            try:
                profile = make(name, written)
            except ProfileError as error:
                self._profile_problem(written, error)
                continue
            if profile is not None:
                into[name] = profile
                self.profiles.written[section, name] = written

    def _line(self, written: Written) -> list[Written]:
        """Return a profile, the one that it is like, the one that this is like, …; empty if there is no end.

        A profile that is like one of its own name is like the one whose place it takes.
        """
        line = [written]
        while "like" in line[-1].content:
            last = line[-1]
            wanted, place = last.content["like"], (*last.path, "like")
            section = str(last.path[0])
            if not isinstance(wanted, str):
                message = f"expected the name of the {_SINGULAR[section]} that this one is like"
                self._problem(last.document, place, message)
                return []
            if wanted == last.name and last.replaces is not None:
                found: Written | None = last.replaces
            else:
                found = self._written[section].get(wanted)
            if found is None:
                self._known(last, ("like",), wanted, section)
                return []
            if found in line:
                self._circle(line[line.index(found) :])
                return []
            if len(line) >= MAX_CHAIN:
                message = f"more than {MAX_CHAIN} profiles are like each other; be like an earlier one"
                self._problem(written.document, (*written.path, "like"), message)
                return []
            line.append(found)
        kind = line[-1].content.get("kind")
        for one in line[:-1] if line[0].path[0] == "availability" else ():
            if one.content.get("kind", kind) != kind:
                message = f"the profile is like one of kind {kind!r}; leave out 'kind', or 'like'"
                self._problem(one.document, (*one.path, "kind"), message)
                return []
        return line

    def _circle(self, circle: list[Written]) -> None:
        """Report profiles that are like each other, once, at the first of them."""
        first = min(range(len(circle)), key=lambda index: circle[index].path)
        names = [one.name for one in (*circle[first:], *circle[: first + 1])]
        message = f"the profile is like itself: {' -> '.join(names)}; remove one 'like'"
        self._problem(circle[first].document, (*circle[first].path, "like"), message)

    def _plain(self, model: type[ProfileSection], name: str, written: Written) -> Any:
        """Return a profile that is built of its keys and of the profiles that these name."""
        section = self._validated(written, model)
        if section is None:
            return None
        named = [(key, getattr(section, key), of) for key, of in model.named().items()]
        good = [self._known(written, (key,), profile, of) for key, profile, of in named]
        known = {key: getattr(self.profiles, of).get(profile) for key, profile, of in named}
        # One that could not be built has a problem of its own.
        if not all(good) or None in known.values():
            return None
        try:
            return section.build(name, written.folder, known)
        except TraceError as error:
            self._problem(written.document, (*written.path, "link_trace"), str(error))
            return None

    def _availability(self, name: str, written: Written) -> AvailabilityProfile | None:
        kind = written.content.get("kind")
        model = AVAILABILITY_SECTIONS.get(kind) if isinstance(kind, str) else None
        if model is None:
            known = nearest(kind, AVAILABILITY_SECTIONS) if isinstance(kind, str) else None
            hint = f"did you mean {known!r}?" if known else f"write one of {', '.join(AVAILABILITY_SECTIONS)}"
            message = f"unknown kind {kind!r}" if isinstance(kind, str) else "must be the name of a kind"
            message = message if "kind" in written.content else "is missing"
            self._problem(written.document, (*written.path, "kind"), message, hint)
            return None
        section: AvailabilitySection | None = self._validated(written, model)
        if section is None:
            return None
        if isinstance(section, CombinedSection):
            good = [self._can_be_part(written, index, part) for index, part in enumerate(section.of)]
            if not all(good):
                return None
        try:
            built: AvailabilityProfile = section.build(name, written.folder, self.profiles.availability)
            return built
        except TraceError as error:
            self._problem(written.document, (*written.path, "file"), str(error))
            return None

    def _can_be_part(self, written: Written, index: int, part: str) -> bool:
        """Check that a profile named in a combined one is there, and no combined one itself."""
        at = ("of", index)
        if not self._known(written, at, part, "availability"):
            return False
        line = self._line(self._written["availability"][part])
        if line and line[-1].content.get("kind") == "combined":
            message = f"{part!r} is a combined profile itself; name its parts"
            self._problem(written.document, (*written.path, *at), message)
            return False
        # One that could not be built has a problem of its own.
        return part in self.profiles.availability

    def _fleet(self, name: str, written: Written) -> FleetMix | None:
        section = self._validated(written, FleetSection)
        if section is None:
            return None
        good = [self._known(written, ("availability",), section.availability, "availability")]
        for key, shares in (("devices", section.devices), ("networks", section.networks)):
            if (shares is None) == (section.groups is None):
                inherited = f"an empty '{key}:' removes that of {written.like!r}" if written.like else None
                message = "is missing" if shares is None else beside_groups(key)
                hint = None if shares is None else inherited
                self._problem(written.document, (*written.path, key), message, hint, of_key=True)
                good.append(False)
            good += [self._known(written, (key, one), one, key, of_key=True) for one in shares or ()]
        built: list[FleetGroup] = []
        if section.groups is not None:
            wrong = problem_of(section.groups)
            if wrong is not None:
                self._problem(written.document, (*written.path, "groups"), wrong)
            good.append(wrong is None)
            for index, group in enumerate(section.groups):
                good.append(self._group(written, ("groups", index), group, built))
        return section.mix(name, tuple(built)) if all(good) else None

    def _group(self, written: Written, at: Path, group: FleetShare, built: list[FleetGroup]) -> bool:
        """Add a group of a fleet to those that are built; False where something is wrong with it."""
        named = [("device", group.device, "devices"), ("network", group.network, "networks")]
        if group.availability is not None:
            named.append(("availability", group.availability, "availability"))
        good = [self._known(written, (*at, key), name, section) for key, name, section in named]
        try:
            built.append(group.build(trace_beside(group.link_trace, written.folder)))
        except TraceError as error:
            self._problem(written.document, (*written.path, *at, "link_trace"), str(error))
            return False
        return all(good)

    # Problems

    def _validated(self, written: Written, model: type[S]) -> S | None:
        """Return the section's model, or None after adding what is wrong with it."""
        content = spread_sources(written.content, model.words)
        try:
            section = model.model_validate(content)
        except ValidationError as error:
            for problem in error.errors():
                self._validation_problem(written, model, dict(problem))
            return None
        return section if self._sources_hold(written, model, section) else None

    def _validation_problem(
        self, written: Written, model: type[ProfileSection], problem: dict[str, Any]
    ) -> None:
        where = _existing(written.content, problem["loc"], keep_last=problem["type"] == "missing")
        path = (*written.path, *where)
        cause = problem.get("ctx", {}).get("error")
        if problem["type"] == "extra_forbidden":
            known = nearest(str(where[-1]), model.model_fields) if len(where) == 1 else None
            hint = f"did you mean {known!r}?" if known else None
            self._problem(written.document, path, "unknown key", hint, of_key=True)
        elif problem["type"] == "missing":
            self._problem(written.document, path, "is missing")
        elif isinstance(cause, UnitError):
            self._problem(written.document, path, str(cause))
        else:
            self._problem(written.document, path, _in_plain_words(problem))

    def _sources_hold(self, written: Written, model: type[ProfileSection], section: ProfileSection) -> bool:
        """Check that each number names a source, each source a number, and that the catalogue cites it."""
        before = len(self.problems)
        numbers = needs_source(written.content, model.words)
        # One text for all numbers stands at the key 'sources' itself.
        alone = isinstance(written.content.get("sources"), str)
        for key in numbers:
            if key not in section.sources:
                message = f"has no source; write it under 'sources', if only as '{key}: assumption'"
                self._problem(written.document, (*written.path, key), message, of_key=True)
        for key, text in section.sources.items():
            path: Path = (*written.path, "sources") if alone else (*written.path, "sources", key)
            if key not in numbers:
                self._problem(written.document, path, "is a source for a key that is not there", of_key=True)
            for source in source_keys(text):
                if source not in self.profiles.sources:
                    known = nearest(source, self.profiles.sources)
                    hint = f"did you mean {known!r}?" if known else "cite it in a section 'sources'"
                    self._problem(written.document, path, f"unknown source {source!r}", hint)
            if alone:
                break
        return len(self.problems) == before

    def _known(self, written: Written, at: Path, name: str, section: str, *, of_key: bool = False) -> bool:
        """Check that ``name`` is written somewhere (whether or not it could be built)."""
        if name in self._written[section]:
            return True
        close = nearest(name, self._written[section])
        hint = f"did you mean {close!r}?" if close else "see them all with: recfleet profiles list"
        message = f"unknown {_SINGULAR[section]} {name!r}"
        self._problem(written.document, (*written.path, *at), message, hint, of_key=of_key)
        return False

    def _profile_problem(self, written: Written, error: ProfileError) -> None:
        """Place a complaint of a frozen type at the key that its field is written as."""
        field_name = error.field.split(".")[0]
        keys = list(written.content)
        by_field = {_FIELD_KEYS.get(field_name, field_name), field_name}
        key = next((key for key in keys if key in by_field), None)
        if error.field == "name" or key is None:
            self._problem(written.document, written.path, error.problem, of_key=True)
        else:
            self._problem(written.document, (*written.path, key), error.problem)

    def _problem(
        self, document: Document, path: Path, message: str, hint: str | None = None, *, of_key: bool = False
    ) -> None:
        position = document.position(path, of_key=of_key)
        problem = DocumentError(position, (*document.within, *path), message, hint)
        # Several profiles may come upon the same one on their way to what they are like.
        if str(problem) not in self._reported:
            self._reported.add(str(problem))
            self.problems.append(problem)


def _from_one_folder(
    content: dict[str, Any],
    files: Sequence[tuple[str, ...]],
    path: Path,
    folder: Callable[[Path], FilePath],
) -> tuple[dict[str, Any], FilePath]:
    """Return the keys of the profile at ``path``, and the one folder in which names of files in it start.

    What stands inside another document may come from several files.
    """
    start = folder(path)
    for keys in files:
        own = folder((*path, *keys))
        if own != start:
            content = anchored(content, own, (keys,))
    return content, start


def _resolved(line: Sequence[Written]) -> Written:
    """Return the first profile of a line with what it takes from the others."""
    *children, oldest = line
    content = oldest.content
    folder = oldest.folder
    for child in reversed(children):
        model = replace(child, content=content).model
        if child.folder != folder:
            content, folder = anchored(content, folder, model.files), child.folder
        own = {key: value for key, value in child.content.items() if key != "like"}
        content = derived(content, own, model.words)
    return replace(line[0], content=content, like=line[0].content.get("like"))


def models_of(section: str) -> tuple[type[ProfileSection], ...]:
    """Return the models of the profiles in a section of a catalogue file: one, or one a kind."""
    if section == "availability":
        return tuple(AVAILABILITY_SECTIONS.values())
    return (_SECTION_MODELS[section],)


_MODELS: Final = tuple(model for section in CATALOGUE_SECTIONS for model in models_of(section))
_FILES: Final = {
    # Those of all kinds: a profile that is like another need not say its kind.
    section: tuple(dict.fromkeys(keys for model in models_of(section) for keys in model.files))
    for section in CATALOGUE_SECTIONS
}
_FIELD_KEYS: Final = {attribute: key for model in _MODELS for key, attribute in model.fields.items()}
"""Attribute of a frozen type -> key in YAML, where they differ; no attribute is written in two ways."""


def _in_plain_words(problem: dict[str, Any]) -> str:
    """Return pydantic's complaint about the shape of a value in the words of a YAML file."""
    context = problem.get("ctx", {})
    if problem["type"] in ("dict_type", "model_type", "model_attributes_type"):
        return "expected a mapping; write its keys below it"
    if problem["type"] == "union_tag_invalid":
        key = str(context["discriminator"]).strip("'")
        return f"unknown {key} '{context['tag']}'; write one of {context['expected_tags']}"
    if problem["type"] == "union_tag_not_found":
        return f"{context['discriminator']} is missing"
    return str(problem["msg"])


def _existing(content: object, location: tuple[str | int, ...], *, keep_last: bool) -> Path:
    """Return the part of pydantic's location that exists in the document.

    Pydantic adds the tag of a tagged union to a location; it stands for no key. With ``keep_last`` the last
    part is kept although it does not exist: it is what is missing.
    """
    path: list[str | int] = []
    for index, part in enumerate(location):
        in_list = isinstance(content, list) and isinstance(part, int) and part < len(content)
        if in_list or (isinstance(content, dict) and part in content):
            path.append(part)
            content = content[part]  # type: ignore[index]
        elif keep_last and index == len(location) - 1:
            path.append(part)
    return tuple(path)
