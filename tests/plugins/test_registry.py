"""The registry: built-ins by import path, plug-ins from entry points and files, and faulty ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from edge.core import plugins

FAULT = '''\
from coordinator.simulation.faults.base import FaultKind, Strike


class Nap(FaultKind):
    """The device naps."""

    key = "nap"
    summary = "devices nap"

    def strike(self, strike: Strike) -> None:
        """Do nothing."""
'''
FILE = "plugin_under_test.py"


def written(folder: Path, text: str) -> Path:
    file = folder / FILE
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_built_in_is_what_the_table_says(kind: str) -> None:
    extension = plugins.kind_of(kind)
    for name in plugins.BUILT_IN[kind]:
        value = plugins.get(kind, name)
        assert extension.is_one(value)
        assert list(extension.lacks(value)) == []
        assert extension.name_of(value) == name


def test_a_file_is_registered_until_the_end_of_the_scope(tmp_path: Path) -> None:
    file, before = written(tmp_path, FAULT), plugins.generation()
    with plugins.scope():
        (entry,) = plugins.load(file)
        assert (entry.kind, entry.name, entry.origin, entry.version) == ("faults", "nap", str(file), None)
        assert plugins.names("faults")[-1] == "nap"
        assert plugins.get("faults", "nap").key == "nap"
        assert plugins.generation() != before
        assert plugins.load(file) == ()
    assert "nap" not in plugins.names("faults")
    assert plugins.generation() == before
    file.write_text(FAULT.replace("nap", "rest"), encoding="utf-8")
    assert [entry.name for entry in plugins.load(file)] == ["rest"]


def test_the_hash_is_that_of_the_source(tmp_path: Path) -> None:
    hashes = []
    for text in (FAULT, FAULT + "# changed\n", FAULT):
        with plugins.scope():
            (entry,) = plugins.load(written(tmp_path, text))
            hashes.append(entry.hash)
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("def", 1, "invalid syntax"),
        ("x = 1\nimport no_such_module\n", 2, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n\n\nx / 0\n", 4, "ZeroDivisionError: division by zero"),
        ("x = 1\n", 1, "holds no plug-in; write a public class of one of"),
        (FAULT.replace('    key = "nap"\n', ""), 4, "Nap has no 'key', text such as 'solar_flare'"),
        (FAULT.replace('"nap"', '"Nap!"'), 4, "Nap has no 'key', text such as 'solar_flare'"),
        (FAULT.replace('"nap"', '"during"'), 4, "Nap has the key 'during', which every fault has"),
        (FAULT.replace('    summary = "devices nap"\n', ""), 4, "Nap has no 'summary'"),
        (FAULT[: FAULT.index("    def strike")], 4, "Nap has no method 'strike'"),
        (FAULT.replace('"nap"', '"vanish"'), 4, "a second fault 'vanish': one is built in; rename it"),
        (
            FAULT + FAULT.partition("\n\n")[2].replace("Nap", "Doze"),
            13,
            "a second fault 'nap': one comes from",
        ),
        (
            "from coordinator.engine.selection.base import Policy\n\n\nclass P(Policy):\n    pass\n",
            4,
            "P has no Settings with a field 'policy: Literal[\"its-name\"]'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_its_line(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text)
    before = plugins.names("faults")
    with pytest.raises(plugins.PluginError) as caught:
        plugins.load(file)
    assert str(caught.value).startswith(f"{file}:{line}: {said}")
    assert plugins.names("faults") == before


@pytest.mark.parametrize("given", ["missing.py", "no_such_module"])
def test_what_is_not_there_is_refused(given: str) -> None:
    with pytest.raises(plugins.PluginError, match=f"{given}: (there is no such|ModuleNotFoundError)"):
        plugins.load(given)


class TestEntryPoints:
    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Return what installs entry points of a module, by name and value."""
        written(tmp_path, FAULT)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, Path(FILE).stem, raising=False)

        def install(**points: str) -> None:
            group = "recfleet.faults"
            found = EntryPoints(EntryPoint(name, value, group) for name, value in points.items())
            by_kind = {kind: found.select(group=f"recfleet.{kind}") for kind in plugins.KINDS}
            monkeypatch.setattr(plugins, "_entry_points", lambda: by_kind)
            monkeypatch.setattr(plugins, "_installed", {})

        return install

    def test_one_is_imported_when_it_is_asked_for(self, installed: Any, tmp_path: Path) -> None:
        installed(nap="plugin_under_test:Nap")
        assert plugins.names("faults")[-1] == "nap"
        assert "plugin_under_test" not in __import__("sys").modules
        assert plugins.get("faults", "nap").__module__ == "plugin_under_test"

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("nap", "plugin_under_test:Doze", ":1: has no 'Doze', which plugin_under_test promises"),
            ("nap", "plugin_under_test:Strike", "Strike is no fault: no class of FaultKind"),
            (
                "doze",
                "plugin_under_test:Nap",
                "calls itself 'nap', and plugin_under_test calls it 'doze'",
            ),
            ("nap", "no_such_module:Nap", "no_such_module: ModuleNotFoundError"),
        ],
    )
    def test_one_that_breaks_its_promise_is_refused(
        self, name: str, value: str, said: str, installed: Any
    ) -> None:
        installed(**{name: value})
        with pytest.raises(plugins.PluginError) as caught:
            plugins.get("faults", name)
        assert said in str(caught.value)

    def test_a_name_of_a_built_in_is_refused(self, installed: Any, tmp_path: Path) -> None:
        installed(vanish="plugin_under_test:Nap")
        with pytest.raises(plugins.PluginError) as caught:
            plugins.names("faults")
        said = "a second fault 'vanish': one is built in; rename it, or uninstall plugin_under_test"
        assert str(caught.value) == f"{tmp_path / FILE}:1: {said}"
