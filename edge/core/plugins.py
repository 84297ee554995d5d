"""Registry of extension points: what is built in, installed, or named on the command line.

Built-ins stand in one table by import path. Installed plug-ins come from the entry points
``recfleet.algorithms``, ``.faults``, ``.selectors``, ``.readers`` and ``.sinks``; others from files and
modules that :func:`load` is given. Nothing is imported before it is asked for, what :func:`load`
loads aside.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from edge.core.errors import MissingExtraError, PluginError, RecfleetError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ALGORITHMS: Final = "algorithms"
FAULTS: Final = "faults"
SELECTORS: Final = "selectors"
READERS: Final = "readers"
SINKS: Final = "sinks"

KINDS: Final = {
    ALGORITHMS: "edge.learning.registry:KIND",
    FAULTS: "coordinator.simulation.faults.base:KIND",
    SELECTORS: "coordinator.engine.selection.base:KIND",
    READERS: "coordinator.scenario.data_section:KIND",
    SINKS: "coordinator.results.sinks:KIND",
}
"""Import path of the :class:`PluginKind` of each extension point."""

BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    ALGORITHMS: {
        "fedrecon": "edge.learning.methods.fedrecon.algorithm:FedRecon",
        "fedmmf": "edge.learning.methods.fedmmf:FedMMF",
        "federated-context": "edge.learning.methods.federated_context:FederatedContext",
        "local-context": "edge.learning.methods.local_context:LocalContext",
        "fedncf": "edge.learning.methods.fedncf.algorithm:FedNCF",
        "fedrecgel": "edge.learning.methods.fedrecgel:FedRecGEL",
        "fedmf": "edge.learning.methods.fedmf:FedMF",
        "fedavg-mf": "edge.learning.methods.fedavg_mf:FedAvgMF",
        "fedrec": "edge.learning.methods.fedrec:FedRec",
        "pfedme": "edge.learning.methods.pfedme:PFedMe",
        "blur": "edge.learning.methods.blur:BLUR",
        "lipm": "edge.learning.methods.lipm.algorithm:LIPM",
        "pfedrec": "edge.learning.methods.pfedrec:PFedRec",
        "fedrap": "edge.learning.methods.fedrap:FedRAP",
        "gpfedrec": "edge.learning.methods.gpfedrec:GPFedRec",
        "colr": "edge.learning.methods.colr:CoLR",
        "fcf": "edge.learning.methods.fcf:FCF",
        "dp-mf": "edge.learning.methods.dp_mf:DPMF",
        "linear-regression": "edge.learning.methods.linear_regression:LinearRegression",
    },
    FAULTS: {
        "vanish": "coordinator.simulation.faults.devices:Vanish",
        "slowdown": "coordinator.simulation.faults.devices:Slowdown",
        "bandwidth": "coordinator.simulation.faults.links:Bandwidth",
        "latency": "coordinator.simulation.faults.links:Latency",
        "loss": "coordinator.simulation.faults.links:Loss",
        "blackout": "coordinator.simulation.faults.links:Blackout",
        "flapping": "coordinator.simulation.faults.links:Flapping",
        "reset": "coordinator.simulation.faults.frames:Reset",
        "late": "coordinator.simulation.faults.frames:Late",
        "duplicate": "coordinator.simulation.faults.frames:Duplicate",
        "reorder": "coordinator.simulation.faults.frames:Reorder",
        "corrupt": "coordinator.simulation.faults.frames:Corrupt",
        "battery_drain": "coordinator.simulation.faults.devices:BatteryDrain",
        "memory_pressure": "coordinator.simulation.faults.devices:MemoryPressure",
        "clock_skew": "coordinator.simulation.faults.devices:ClockSkew",
        "flash_crowd": "coordinator.simulation.faults.devices:FlashCrowd",
        "poisoned_updates": "coordinator.simulation.faults.devices:PoisonedUpdates",
        "explicit_boosting": "coordinator.simulation.faults.promotion:ExplicitBoosting",
        "hard_users": "coordinator.simulation.faults.promotion:HardUsers",
        "coordinator_slow": "coordinator.simulation.faults.coordinator:CoordinatorSlow",
        "coordinator_crash": "coordinator.simulation.faults.coordinator:CoordinatorCrash",
    },
    SELECTORS: {
        "random": "coordinator.engine.selection.uniform:Random",
        "availability-aware": "coordinator.engine.selection.uniform:AvailabilityAware",
        "power-of-choice": "coordinator.engine.selection.power_of_choice:PowerOfChoice",
        "oort": "coordinator.engine.selection.oort:Oort",
        "round-robin": "coordinator.engine.selection.round_robin:RoundRobin",
        "deadline-aware": "coordinator.engine.selection.deadline_aware:DeadlineAware",
    },
    READERS: {
        "synthetic-ratings": "coordinator.scenario.data_section:SyntheticRatingsSection",
        "synthetic-regression": "coordinator.scenario.data_section:SyntheticRegression",
        "movielens-100k": "coordinator.scenario.data_section:MovieLens100K",
        "movielens-1m": "coordinator.scenario.data_section:MovieLens1M",
        "movielens-csv": "coordinator.scenario.data_section:MovieLensCsv",
        "recbole": "coordinator.scenario.data_section:RecBole",
        "lastfm": "coordinator.scenario.data_section:LastFm",
        "parquet": "coordinator.scenario.data_section:ParquetRatings",
        "plain": "coordinator.scenario.data_section:PlainRatings",
        "table": "coordinator.scenario.data_section:TableRatings",
        "auto": "coordinator.scenario.data_section:AutoRatings",
    },
    SINKS: {
        "jsonl": "coordinator.results.sinks:JsonLines",
        "mlflow": "coordinator.results.mlflow_sink:MlflowSink",
        "tensorboard": "coordinator.results.tensorboard_sink:TensorBoardSink",
    },
}
"""Import path of every built-in by kind and name, in the order of the reference.

These paths and those of :data:`KINDS` are the only references to higher layers.
"""

ADVICE: Final = "load it by --plugin FILE"
"""Hint beside a name that is in no scenario file's reach."""
_EXTRA_MODULES: Final = frozenset({"torch"})
"""Packages that plug-ins import and an extra of the same name brings."""
_OURS: Final = "recfleet"


@dataclass(frozen=True, slots=True)
class PluginKind:
    """An extension point.

    Attributes
    ----------
    noun : what a plug-in of it is called.
    base : class of its plug-ins, or of the records that describe them.
    name_of : name that a plug-in gives itself; of one that lacks nothing.
    lacks : what a plug-in lacks or gets wrong, in words.
    """

    noun: str
    base: type
    name_of: Callable[[Any], str]
    lacks: Callable[[Any], Iterable[str]]

    def is_one(self, value: object) -> bool:
        """Return whether a value is a plug-in of this kind."""
        if isinstance(value, type):
            return issubclass(value, self.base) and value is not self.base
        return isinstance(value, self.base)


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered name and where its value is to be found.

    Attributes
    ----------
    kind, name : ``faults``, ``vanish``.
    origin : the distribution, module or file that it comes from.
    version : of the origin; None where it has none, and for what is built in.
    target : import path, ``module:attribute``.
    """

    kind: str
    name: str
    origin: str
    version: str | None
    target: str

    @property
    def built_in(self) -> bool:
        """Whether it is part of recfleet."""
        return self.origin == _OURS

    @property
    def hash(self) -> str:
        """SHA-256 of the source, 64 hexadecimal digits: the module, or the whole package of a plug-in."""
        module = self.target.partition(":")[0]
        if not self.built_in:
            top = importlib.util.find_spec(module.partition(".")[0])
            folders = [] if top is None else list(top.submodule_search_locations or ())
            if folders:
                return _hash_of(Path(folders[0]), sorted(Path(folders[0]).rglob("*.py")))
        loaded = sys.modules.get(module)
        file = None if loaded is None else loaded.__file__
        if file is None:
            spec = importlib.util.find_spec(module)
            file = None if spec is None else spec.origin
        if file is None:
            raise PluginError(f"{self.origin}: the module {module} has no file")
        return _hash_of(Path(file).parent, [Path(file)])

    def facts(self) -> dict[str, str | None]:
        """Return kind, name, origin, version and hash, as a manifest has them."""
        found = {"kind": self.kind, "name": self.name, "origin": self.origin, "version": self.version}
        return {**found, "hash": self.hash}


def _hash_of(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@dataclass
class _State:
    """What is registered beside the built-ins."""

    number: int = 0
    named: dict[str, dict[str, Entry]] = field(default_factory=dict)
    """Entries from the command line, by kind and name."""
    loaded: dict[str, bytes] = field(default_factory=dict)
    """The modules and absolute paths that they come from, in order, with the contents of a file."""


_NUMBERS: Final = itertools.count(1)
_state: Final = _State()
_installed: dict[str, dict[str, Entry]] = {}
_values: dict[Entry, Any] = {}


def generation() -> int:
    """Return a number that stands for what is registered: another set, another number."""
    return _state.number


def loaded() -> tuple[str, ...]:
    """Return what :func:`load` has been given, for :func:`load_all` in another process."""
    return tuple(_state.loaded)


def load_all(given: Iterable[str]) -> None:
    """Load plug-ins as another process has, see :func:`loaded`."""
    for one in given:
        load(one)


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Forget, at the end, the plug-ins that are loaded within."""
    before = copy.deepcopy(_state)
    try:
        yield
    finally:
        for one in set(_state.loaded) - set(before.loaded):
            if os.path.isabs(one):
                sys.modules.pop(_module_name(Path(one)), None)
        kept = {entry for of in before.named.values() for entry in of.values()}
        for entry in [entry for of in _state.named.values() for entry in of.values() if entry not in kept]:
            _values.pop(entry, None)
        _state.number, _state.named, _state.loaded = before.number, before.named, before.loaded


def kind_of(kind: str) -> PluginKind:
    """Return the extension point ``kind``, one of :data:`KINDS`."""
    found: PluginKind = pkgutil.resolve_name(KINDS[kind])
    return found


def entries(kind: str) -> dict[str, Entry]:
    """Return every entry of a kind by name: built-ins, installed ones by name, those that were loaded.

    Raises
    ------
    PluginError : an installed plug-in that has the name of another.
    """
    ours = {name: Entry(kind, name, _OURS, None, at) for name, at in BUILT_IN[kind].items()}
    return {**ours, **_from_entry_points(kind), **_state.named.get(kind, {})}


def names(kind: str) -> tuple[str, ...]:
    """Return every name of a kind, without importing what it stands for."""
    return (*BUILT_IN[kind], *_from_entry_points(kind), *_state.named.get(kind, {}))


def used(names_by_kind: Iterable[tuple[str, str]]) -> tuple[Entry, ...]:
    """Return the entries of those of some kinds and names that are not built in, each once, sorted."""
    wanted = {(kind, name) for kind, name in names_by_kind if name not in BUILT_IN[kind]}
    return tuple(entries(kind)[name] for kind, name in sorted(wanted))


def editions(manifest: Mapping[str, Any], run: Path) -> dict[str, str]:
    """Return version and hash of the plug-ins that the manifest of a run lists, in words, by kind and name.

    Raises
    ------
    PluginError : the list is damaged; the message names the run's directory.
    """
    try:
        return {
            f"plugins.{one['kind']}.{one['name']}": f"{one['version'] or 'no version'}, {one['hash'][:12]}"
            for one in manifest.get("plugins", ())
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise PluginError(f"{run}: the list of plug-ins in the manifest is damaged") from error


def get(kind: str, name: str) -> Any:
    """Return what a name stands for; imported when it is first asked for.

    Raises
    ------
    KeyError : there is no such name.
    PluginError : it cannot be imported, or is not what its entry point says.
    """
    target = BUILT_IN[kind].get(name)
    if target is not None:
        return pkgutil.resolve_name(target)
    entry = entries(kind)[name]
    if entry not in _values:
        _values[entry] = _value(entry)
    return _values[entry]


class View(Mapping[str, Any]):
    """Everything of a kind by name, as it is when it is looked at; values are imported when they are read.

    Parameters
    ----------
    kind : one of :data:`KINDS`.
    part : what to return of a value; by default the value itself.
    """

    def __init__(self, kind: str, part: Callable[[Any], Any] | None = None) -> None:
        self.kind = kind
        self._part = part

    def __getitem__(self, name: str) -> Any:
        value = get(self.kind, name)
        return value if self._part is None else self._part(value)

    def __iter__(self) -> Iterator[str]:
        return iter(names(self.kind))

    def __len__(self) -> int:
        return len(names(self.kind))

    def __contains__(self, name: object) -> bool:
        # What is installed is searched only for names that are not built in.
        return name in BUILT_IN[self.kind] or name in names(self.kind)


def load(given: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Load the plug-ins of a Python file or of an importable module, and return their entries.

    Every public class in it that is a plug-in of some kind counts, under the name that it gives itself. What
    is loaded already is not loaded again, and nothing is returned, unless it is a file that has changed.

    Raises
    ------
    PluginError : it cannot be imported, holds no plug-in, or one that lacks something or has a name twice.
    """
    text = os.fspath(given)
    is_file = text.endswith(".py") or os.path.sep in text or os.path.isfile(text)
    source = os.path.abspath(text) if is_file else text
    contents = Path(source).read_bytes() if is_file and os.path.isfile(source) else b""
    if source in _state.loaded:
        if _state.loaded[source] == contents:
            return ()
        _forget(source)
    module = _module_of_file(Path(source), text, contents) if is_file else _module_named(text)
    version = getattr(module, "__version__", None)
    found: list[tuple[Entry, Any]] = []
    for kind_name in KINDS:
        kind = kind_of(kind_name)
        for attribute, value in vars(module).items():
            home = value.__module__ if isinstance(value, type) else module.__name__
            ours = home == module.__name__ or home.startswith(f"{module.__name__}.")
            if attribute.startswith("_") or not ours or not kind.is_one(value):
                continue
            where = _where(value, module)
            name = _checked(kind, value, where)
            target = f"{module.__name__}:{attribute}"
            entry = Entry(kind_name, name, text, None if version is None else str(version), target)
            before = entries(kind_name).get(name) or next(
                (other for other, _ in found if (other.kind, other.name) == (kind_name, name)), None
            )
            if before is not None:
                raise PluginError(f"{where}: {_twice(kind, entry, before)}")
            found.append((entry, value))
    if not found:
        bases = ", ".join(f"{kind_of(one).base.__name__}" for one in KINDS)
        raise PluginError(f"{text}:1: holds no plug-in; write a public class of one of {bases}")
    for entry, value in found:
        _state.named.setdefault(entry.kind, {})[entry.name] = entry
        _values[entry] = value
    _state.loaded[source] = contents
    _state.number = next(_NUMBERS)
    return tuple(entry for entry, _ in found)


def _forget(source: str) -> None:
    """Remove the entries of a file that was loaded, and its module."""
    module = _module_name(Path(source))
    sys.modules.pop(module, None)
    del _state.loaded[source]
    for named in _state.named.values():
        for name in [name for name, entry in named.items() if entry.target.startswith(f"{module}:")]:
            _values.pop(named.pop(name), None)


def _twice(kind: PluginKind, entry: Entry, before: Entry) -> str:
    there = "is built in" if before.built_in else f"comes from {before.origin} ({before.target})"
    return f"a second {kind.noun} {entry.name!r}: one {there}; rename it"


@cache
def _entry_points() -> dict[str, EntryPoints]:
    """Return the entry points by kind: what is installed is searched once, 20 ms, for all kinds."""
    from importlib import metadata  # noqa: PLC0415 - 30 ms, once a scenario is read

    found = metadata.entry_points()
    return {kind: found.select(group=f"recfleet.{kind}") for kind in KINDS}


def _from_entry_points(kind: str) -> dict[str, Entry]:
    """Return the installed plug-ins of a kind by name, sorted."""
    if kind in _installed:
        return _installed[kind]
    found: dict[str, Entry] = {}
    for point in sorted(_entry_points()[kind], key=lambda one: one.name):
        origin, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
        entry = Entry(kind, point.name, origin or point.module, version, point.value)
        before = found.get(point.name)
        if before is None and point.name in BUILT_IN[kind]:
            before = Entry(kind, point.name, _OURS, None, BUILT_IN[kind][point.name])
        if before is not None and before != entry:
            spec = importlib.util.find_spec(point.module.partition(".")[0])
            where = point.module if spec is None or spec.origin is None else f"{spec.origin}:1"
            raise PluginError(f"{where}: {_twice(kind_of(kind), entry, before)}, or uninstall {entry.origin}")
        found[point.name] = entry
    _installed[kind] = found
    return found


def _value(entry: Entry) -> Any:
    """Import and check what an entry of somebody else stands for."""
    name, _, attribute = entry.target.partition(":")
    module = _module_named(name)
    kind = kind_of(entry.kind)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise PluginError(f"{_file_of(module)}:1: has no {attribute!r}, which {entry.origin} promises")
        value = getattr(value, part)
    where = _where(value, module)
    if not kind.is_one(value):
        raise PluginError(f"{where}: {attribute} is no {kind.noun}: no class of {kind.base.__name__}")
    own = _checked(kind, value, where)
    if own != entry.name:
        raise PluginError(f"{where}: calls itself {own!r}, and {entry.origin} calls it {entry.name!r}")
    return value


def _checked(kind: PluginKind, value: Any, where: str) -> str:
    """Return the name that a plug-in gives itself."""
    lacking = list(kind.lacks(value))
    if lacking:
        label = getattr(value, "__name__", kind.noun)
        raise PluginError("\n".join(f"{where}: {label} {what}" for what in lacking))
    return kind.name_of(value)


def _module_of_file(path: Path, text: str, contents: bytes) -> ModuleType:
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not path.is_file():
        raise PluginError(f"{text}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with code_errors(text):
        try:
            # Not by the loader: it takes bytecode of before for a file of equal length and time.
            exec(compile(contents, path, "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _module_name(path: Path) -> str:
    """Return the name under which a file is imported, the same in every process."""
    return f"recfleet_plugin_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}_{path.stem}"


def _module_named(name: str) -> ModuleType:
    with code_errors(name):
        return importlib.import_module(name)


@contextlib.contextmanager
def code_errors(called: str) -> Iterator[None]:
    """Turn an error in the code of a plug-in into a :class:`PluginError` that names its line.

    Those that recfleet raises on purpose pass. ``called`` is its file or, in words, what it is.
    """
    try:
        yield
    except RecfleetError:
        raise
    except ModuleNotFoundError as error:
        if error.name in _EXTRA_MODULES:
            raise MissingExtraError(
                f"{called} needs the package {error.name}; pip install 'recfleet[{error.name}]'"
            ) from error
        raise _placed(error, called) from error
    except SyntaxError as error:
        raise PluginError(f"{error.filename or called}:{error.lineno or 1}: {error.msg}") from error
    except Exception as error:
        raise _placed(error, called) from error


def _placed(error: Exception, called: str) -> PluginError:
    """Return an error that names the line of the plug-in, or of what it called, that raised another."""
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if not one.filename.startswith("<frozen") and one.filename not in (__file__, importlib.__file__)
    ]
    own = [one for one in frames if one.filename == os.path.abspath(called)] or frames
    where = called if not own else f"{own[-1].filename}:{own[-1].lineno}"
    return PluginError(f"{where}: {type(error).__name__}: {error}")


def _file_of(module: ModuleType) -> str:
    return module.__file__ or module.__name__


def _where(value: Any, module: ModuleType) -> str:
    """Return file and line of a class; of a record, the first line of its module."""
    try:
        line = inspect.getsourcelines(value)[1] if isinstance(value, type) else 1
    except (OSError, TypeError):
        line = 1
    return f"{_file_of(module)}:{line}"
