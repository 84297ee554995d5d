"""How profiles are written in YAML: a pydantic model of each frozen type, made from its fields.

A field of a profile says in its annotation, beside its type, how its key is written (:class:`Key`); its type
says what may be written, and which values code may give (:class:`~device_profiles.fields.Form`).
``device_profiles.catalogue`` resolves names between profiles and turns what goes wrong into errors with a
place in the file.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

from device_profiles.errors import ProfileError
from device_profiles.fields import Bounds, Form, Text

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?")
V = TypeVar("V")
M = TypeVar("M", bound="WrittenPart")
P = TypeVar("P", bound="ProfileSection")


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """How a field of a profile is written: annotates it.

    Attributes
    ----------
    description : of the value.
    name : the key; None: the name of the field.
    written : type of what is written, where it is another than that of the field.
    read : value of the field from what is written, and the folder where names of files start.
    default : what holds where the key is left out, for a field without a default; ``...``: it is required.
    names : section of a catalogue file, where the key names a profile of it.
    files : where names of files stand in what is written: the keys on the way there.
    word : whether it holds no number and so needs no source, as names and files do not.
    """

    description: str
    name: str | None = None
    written: Any = None
    read: Callable[[Any, Path], Any] | None = None
    default: Any = ...
    names: str | None = None
    files: tuple[tuple[str, ...], ...] = ()
    word: bool = False


class WrittenField(NamedTuple):
    """A field that has a key: its name, its key, its type, the bounds of its values, and its default."""

    attribute: str
    key: Key
    type: Any
    bounds: Bounds | None
    default: Any

    @property
    def name(self) -> str:
        """The key in YAML."""
        return self.key.name or self.attribute


@functools.cache
def written_fields(profile: Any) -> tuple[WrittenField, ...]:
    """Return the fields of a frozen type that have a key."""
    found = []
    hints = get_type_hints(profile, include_extras=True)
    for one in fields(profile):
        hint = hints[one.name]
        key = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Key)), None)
        if key is not None:
            default = key.default if one.default is MISSING else one.default
            found.append(WrittenField(one.name, key, hint, _bounds(hint), default))
    return tuple(found)


def _bounds(hint: Any) -> Bounds | None:
    """Return the bounds that annotate a type: the outermost ones."""
    inner, *extras = get_args(hint) if get_origin(hint) is Annotated else (None,)
    for extra in reversed(extras):
        found = extra.bounds if isinstance(extra, Form) else extra
        if isinstance(found, Bounds):
            return found
    within = (inner,) if extras else get_args(hint)
    return next((found for one in within if (found := _bounds(one)) is not None), None)


def check_number(owner: str, field: str, value: float, bounds: Bounds) -> None:
    """Raise ProfileError unless a field is a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ProfileError(owner, field, f"must be a finite number, not {value!r}")
    if not bounds.admits(value):
        raise ProfileError(owner, field, f"{bounds.words}, not {value!r}")


def check_numbers(owner: str, part: Any) -> None:
    """Raise ProfileError unless every number of a frozen type with keys is within its bounds."""
    for one in written_fields(part.__class__):
        value = getattr(part, one.attribute)
        if one.bounds is not None and value is not None:
            check_number(owner, one.attribute, value, one.bounds)


def check_profile(kind: str, profile: Any) -> str:
    """Check the name and the numbers of a frozen profile, and freeze its sources; for ``__post_init__``.

    Returns
    -------
    ``kind 'name'``, for use in messages.

    Raises
    ------
    ProfileError : the name cannot be typed plainly, or a number is out of its bounds.
    """
    name = profile.name
    owner = f"{kind} {name!r}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProfileError(
            owner, "name", "use small letters, digits, '_', '-' and '.', for example 'phone_mid_2020'"
        )
    check_numbers(owner, profile)
    object.__setattr__(profile, "sources", FrozenMap(profile.sources))
    return owner


class FrozenMap(Mapping[str, V], Generic[V]):
    """An immutable mapping from str to V that keeps the order it was given.

    ``types.MappingProxyType`` would do, were it not that it can neither be pickled (profiles travel to worker
    processes) nor hashed. Two maps are equal when they hold the same items, whatever the order.
    """

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenMap cannot change; build a new one to set {name!r}")

    def __reduce__(self) -> tuple[type[FrozenMap[V]], tuple[dict[str, V]]]:
        return type(self), (dict(self._items),)


NO_SOURCES: FrozenMap[str] = FrozenMap({})


class WrittenPart(BaseModel):
    """Keys that stand together, of which an object of the frozen type ``builds`` is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    builds: ClassVar[type]

    def values(self, folder: Path) -> dict[str, Any]:
        """Return the values of the fields with keys; of a profile that is named, its name."""
        found = {}
        for one in written_fields(self.builds):
            value = getattr(self, one.name)
            if isinstance(value, WrittenPart):
                value = value.builds(**value.values(folder))
            found[one.attribute] = value if one.key.read is None else one.key.read(value, folder)
        return found


class ProfileSection(WrittenPart):
    """Common to every profile in YAML.

    ``words`` are the keys that hold no number and so need no source, ``files`` the paths of those
    that name files; ``fields`` names the attribute that a key becomes, where the two differ.
    """

    words: ClassVar[frozenset[str]] = frozenset()
    files: ClassVar[tuple[tuple[str, ...], ...]] = ()
    fields: ClassVar[dict[str, str]] = {}

    sources: dict[str, Text] = Field(
        default_factory=dict, description="Where each number comes from: key of this profile to source."
    )
    note: Text | None = Field(default=None, description="Anything a reader should know about the numbers.")

    @classmethod
    def named(cls) -> dict[str, str]:
        """Return the keys that name profiles, each with the section of a catalogue file that these are in."""
        return {one.name: one.key.names for one in written_fields(cls.builds) if one.key.names is not None}

    def field_sources(self) -> dict[str, str]:
        """Return the sources by attribute of the frozen type."""
        return {self.fields.get(key, key): source for key, source in self.sources.items()}

    def build(self, name: str, folder: Path, known: Mapping[str, Any]) -> Any:
        """Return the frozen profile.

        Parameters
        ----------
        name : of the profile.
        folder : where relative file names start.
        known : the profiles that its keys name, by key; of availability, all profiles by name.

        Raises
        ------
        ProfileError : numbers that cannot be.
        TraceError : a file that cannot be used.
        """
        values = {**self.values(folder), **{key: known[key] for key in self.named()}}
        return self.builds(name, **values, sources=self.field_sources())


def part_of(builds: type, name: str, base: type[M], tag: str | None = None) -> type[M]:
    """Return the model of the keys of a frozen type.

    Parameters
    ----------
    builds : the frozen type.
    name : of the model, and of the attribute of the module that holds it.
    base : what it derives from.
    tag : class attribute of the frozen type that is a key, too, with that value alone.
    """
    keys: dict[str, Any] = {} if tag is None else {tag: (Literal[getattr(builds, tag)], ...)}
    for one in written_fields(builds):
        written = one.type if one.key.written is None else one.key.written
        inner = next((arg for arg in get_args(get_args(one.type)[0]) if is_dataclass(arg)), None)
        if one.key.written is None and isinstance(inner, type):
            written = part_of(inner, inner.__name__.replace("Profile", "Section"), WrittenPart) | None
        keys[one.name] = (written, Field(default=one.default, description=one.key.description))
    document = (builds.__doc__ or "").split("\n\n")[0]
    made: type[M] = create_model(name, __base__=base, __module__=builds.__module__, __doc__=document, **keys)
    made.builds = builds
    return made


def section_of(builds: type, name: str, base: type[P], tag: str | None = None) -> type[P]:
    """Return the model of a profile; arguments as of :func:`part_of`."""
    made, written = part_of(builds, name, base, tag), written_fields(builds)
    keys = [(one.name, one.key) for one in written]
    made.words = base.words | {name for name, key in keys if key.word or key.names or key.files}
    made.files = tuple((name, *inner) for name, key in keys for inner in key.files)
    made.fields = {one.name: one.attribute for one in written if one.name != one.attribute}
    return made


def spread_sources(raw: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Return ``raw`` with ``sources: text`` spread over every key that needs a source."""
    sources = raw.get("sources")
    if not isinstance(sources, str):
        return raw
    return {**raw, "sources": dict.fromkeys(needs_source(raw, words), sources)}


def needs_source(raw: dict[str, Any], words: frozenset[str]) -> list[str]:
    """Return the keys of a profile that hold numbers; an empty value, such as no battery, is none."""
    return [
        key for key in raw if key not in words and key not in ("sources", "note") and raw[key] is not None
    ]
