"""Imports point down only: between the packages, between the rooms inside them, and between modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from edge.core import plugins

ROOT = Path(__file__).resolve().parents[1]

LAYERS = ("device_profiles", "edge", "coordinator", "recfleet")
"""Lowest first; a package may import itself and those before it."""

ROOMS = {
    "edge": (
        {"core"},
        {"clock", "wire", "crypto", "data"},
        {"network", "metrics", "learning", "privacy", "secagg", "homomorphic"},
        {"device", "onnx", "fitting"},
    ),
    "coordinator": (
        {"scenario"},
        {"engine"},
        {"simulation", "secure", "cluster"},
        {"results"},
        {"run"},
        {"sweeps", "service", "swarm", "tuning"},
        {"api", "cli"},
    ),
}
"""Folders of a package, lowest first; each may import those before, and its own layer but for circles."""

SANS_IO = (
    "coordinator/engine/rounds.py",
    "coordinator/engine/secure_rounds.py",
    "edge/device/participation.py",
    "edge/wire/codec.py",
    "edge/wire/messages.py",
    "edge/wire/session.py",
    "edge/wire/session_frames.py",
    "edge/secagg/client.py",
    "coordinator/secure/sum_server.py",
    "coordinator/secure/secagg/server.py",
    "edge/homomorphic/participant.py",
    "coordinator/secure/homomorphic/server.py",
    "coordinator/service/dashboard/live_state.py",
    "coordinator/service/dashboard/at_work.py",
    "coordinator/service/dashboard/session_figures.py",
    "coordinator/service/dashboard/table_figures.py",
    "coordinator/service/dashboard/happenings.py",
)
"""State machines and encodings: bytes and times are handed to them."""

IO_MODULES = {
    "aiohttp",
    "asyncio",
    "io",
    "os",
    "pathlib",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "time",
}


def modules() -> list[Path]:
    return sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def imports(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted name of everything that a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *((node.module,) if node.module else ())))
            for alias in node.names:
                # `from edge import clock` imports a module, not a name of the package.
                yield f"{origin}.{alias.name}"


@cache
def imports_of(path: Path) -> list[str]:
    return list(imports(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts[:-1]))


def room_of(dotted: str) -> tuple[str, int] | None:
    """Return name and layer of the room of ``package.room…``; None for what lies in none."""
    parts = dotted.split(".")
    if len(parts) < 2:
        return None
    for number, names in enumerate(ROOMS.get(parts[0], ())):
        if parts[1] in names:
            return ".".join(parts[:2]), number
    return None


def violations(path: Path, names: list[str]) -> list[str]:
    relative = path.relative_to(ROOT)
    own = LAYERS.index(relative.parts[0])
    here = room_of(".".join(relative.with_suffix("").parts))
    wrong = []
    for name in names:
        package = name.split(".")[0]
        upwards = package in LAYERS and LAYERS.index(package) > own
        there = room_of(name)
        if here is not None and there is not None and package == relative.parts[0]:
            upwards |= there[1] > here[1]
        if upwards:
            wrong.append(f"{relative} imports {name}")
    return wrong


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, by dotted name."""
    known = {dotted_name(path): path for path in modules()}
    found = {}
    for name, path in known.items():
        wanted = imports_of(path)
        whole = {one if one in known else one.rpartition(".")[0] for one in wanted}
        found[name] = {one for one in whole if one in known and one != name}
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of a graph; an empty list where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_there_are_modules_in_every_layer() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in modules()} == set(LAYERS)


def test_imports_point_down() -> None:
    assert [line for path in modules() for line in violations(path, imports_of(path))] == []


def test_no_circle_of_modules() -> None:
    assert circle(module_imports()) == []


def test_no_circle_of_rooms() -> None:
    rooms: dict[str, set[str]] = {}
    for name, wanted in module_imports().items():
        own = room_of(name)
        if own is not None:
            there = {room[0] for one in wanted if (room := room_of(one)) is not None}
            rooms.setdefault(own[0], set()).update(there - {own[0]})
    assert circle(rooms) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_every_folder_is_a_room_and_nothing_lies_outside(package: str) -> None:
    inside = {
        path.stem for path in (ROOT / package).iterdir() if not path.name.startswith(("__", "py.typed"))
    }
    assert inside == set().union(*ROOMS[package])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("device_profiles/units.py", "import edge.clock"),
        ("edge/clock/virtual.py", "from coordinator.engine import rounds"),
        (
            "edge/clock/virtual.py",
            "def later() -> None:\n    from coordinator.engine.rounds import RoundMachine",
        ),
        ("edge/core/rng.py", "from edge.wire.codec import encode"),
        ("edge/core/rng.py", "from ..wire.codec import encode"),
        ("edge/wire/codec.py", "from edge import learning"),
        ("edge/wire/codec.py", "if TYPE_CHECKING:\n    from edge.network.link import Delivery"),
        ("edge/learning/base.py", "from edge.device.actor import act"),
        ("coordinator/scenario/schema.py", "from coordinator.engine.rounds import RoundPlan"),
        ("coordinator/engine/training.py", "from coordinator.results.tables import writer"),
    ],
)
def test_an_import_upwards_is_found(module: str, source: str) -> None:
    path = ROOT / module
    assert violations(path, list(imports(source, Path(module).parts[:-1])))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("coordinator/engine/rounds.py", "from edge.device.actor import act"),
        ("coordinator/cli/run.py", "from coordinator.run.runner import run_scenario"),
        ("edge/device/actor.py", "from edge.learning import base"),
        ("edge/learning/base.py", "from edge.data.store import RatingStore"),
        ("edge/clock/virtual.py", "from .mailbox import Mailbox"),
    ],
)
def test_an_import_downwards_is_none(module: str, source: str) -> None:
    assert violations(ROOT / module, list(imports(source, Path(module).parts[:-1]))) == []


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of two classes or more, and where these are; ``sources`` are modules by path."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_classes_with_one_name() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in modules()}
    assert shared_names(sources) == {}


def test_a_name_of_two_classes_is_found() -> None:
    first = "class Cell: ...\nclass _Row: ...\n"
    second = "class Table:\n    class _Row: ...\n"
    assert shared_names({"a.py": first, "b.py": second}) == {"_Row": ["a.py:2", "b.py:2"]}


@pytest.mark.parametrize("module", SANS_IO)
def test_protocol_logic_does_no_input_or_output(module: str) -> None:
    path = ROOT / module
    assert sorted({name.split(".")[0] for name in imports_of(path)} & IO_MODULES) == []
    waits = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Await | ast.AsyncFunctionDef)]  # fmt: skip
    assert waits == []


@pytest.mark.slow
def test_edge_works_without_the_coordinator() -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['coordinator'] = None\n"
        "import edge\n"
        "for found in pkgutil.walk_packages(edge.__path__, 'edge.'):\n"
        "    importlib.import_module(found.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def references(path: Path) -> set[str]:
    """Return the import paths, ``module:attribute``, that stand in a module as text."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str))  # fmt: skip
    return {text for text in texts if re.fullmatch(rf"({'|'.join(LAYERS)})(\.\w+)+:[\w.]+", text)}


def test_the_registry_alone_refers_upwards_by_text() -> None:
    tables = {path for table in plugins.BUILT_IN.values() for path in table.values()}
    registry = ROOT / "edge" / "core" / "plugins.py"
    assert references(registry) == tables | {*plugins.KINDS.values()}
    below = [path for path in modules() if path.relative_to(ROOT).parts[0] in LAYERS[:2]]
    assert [path for path in below if path != registry and references(path)] == []
