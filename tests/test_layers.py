"""Imports point down only: between the packages, and between the folders and modules inside ``edge``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge import plugins

ROOT = Path(__file__).resolve().parents[1]

LAYERS = ("device_profiles", "edge", "coordinator", "recfleet")
"""Lowest first; a package may import itself and those before it."""

EDGE_LAYERS = (
    {"clock", "real_clock", "rng", "errors", "vocabulary", "plugins", "draws"},
    {
        "codec",
        "messages",
        "secagg_messages",
        "ckks_messages",
        "message_kinds",
        "log",
        "mailbox",
        "session",
        "session_frames",
    },
    {"transport", "learning", "data", "evaluation", "secagg", "homomorphic", "privacy", "serving"},
    {"device"},
)
"""Folders and modules of ``edge``, lowest first; each may import its own layer and those before it."""

SANS_IO = (
    "coordinator/rounds.py",
    "coordinator/secure_rounds.py",
    "edge/device/participation.py",
    "edge/codec.py",
    "edge/messages.py",
    "edge/session.py",
    "edge/session_frames.py",
    "edge/secagg_messages.py",
    "edge/secagg/client.py",
    "coordinator/secagg/server.py",
    "edge/homomorphic/participant.py",
    "coordinator/homomorphic/server.py",
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


def imports_of(path: Path) -> list[str]:
    return list(imports(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts[:-1]))


def edge_layer(dotted: str) -> int | None:
    """Return the layer of ``edge.name…``; None for what is not in ``edge`` or is ``edge`` itself."""
    parts = dotted.split(".")
    if parts[0] != "edge" or len(parts) < 2:
        return None
    found = [number for number, names in enumerate(EDGE_LAYERS) if parts[1] in names]
    assert found, f"edge.{parts[1]} has no place in EDGE_LAYERS"
    return found[0]


def violations(path: Path, names: list[str]) -> list[str]:
    relative = path.relative_to(ROOT)
    own = LAYERS.index(relative.parts[0])
    here = ".".join(relative.with_suffix("").parts)
    own_edge = None if relative.name == "__init__.py" and len(relative.parts) == 2 else edge_layer(here)
    wrong = []
    for name in names:
        package = name.split(".")[0]
        upwards = package in LAYERS and LAYERS.index(package) > own
        target = edge_layer(name)
        upwards_in_edge = own_edge is not None and target is not None and target > own_edge
        if upwards or upwards_in_edge:
            wrong.append(f"{relative} imports {name}")
    return wrong


def test_there_are_modules_in_every_layer() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in modules()} == set(LAYERS)


@pytest.mark.slow
def test_imports_point_down() -> None:
    assert [line for path in modules() for line in violations(path, imports_of(path))] == []


def test_every_part_of_edge_has_a_layer() -> None:
    placed = set().union(*EDGE_LAYERS)
    parts = {
        path.stem
        for path in (ROOT / "edge").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert parts - {"__init__"} <= placed


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("device_profiles/units.py", "import edge.clock"),
        ("edge/clock.py", "from coordinator import rounds"),
        ("edge/clock.py", "def later() -> None:\n    from coordinator.rounds import Round"),
        ("edge/clock.py", "from edge.codec import encode"),
        ("edge/clock.py", "from .codec import encode"),
        ("edge/codec.py", "from edge import learning"),
        ("edge/learning/base.py", "from edge.device.actor import act"),
        ("edge/learning/base.py", "from ..device import actor"),
    ],
)
def test_an_import_upwards_is_found(module: str, source: str) -> None:
    path = ROOT / module
    assert violations(path, list(imports(source, Path(module).parts[:-1])))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("coordinator/rounds.py", "from edge.device.actor import act"),
        ("edge/device/actor.py", "from edge.learning import base"),
        ("edge/learning/base.py", "from edge.data.store import RatingStore"),
        ("edge/clock.py", "from .errors import DeadlockError"),
    ],
)
def test_an_import_downwards_is_none(module: str, source: str) -> None:
    assert violations(ROOT / module, list(imports(source, Path(module).parts[:-1]))) == []


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
    registry = ROOT / "edge" / "plugins.py"
    assert references(registry) == tables | {*plugins.KINDS.values()}
    below = [path for path in modules() if path.relative_to(ROOT).parts[0] in LAYERS[:2]]
    assert [path for path in below if path != registry and references(path)] == []
