"""A package with entry points, installed beside recfleet as a user would install it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from installed import ROOT, Installation, install, pip

from coordinator.scenario.starter import starter_files

PACKAGE = ROOT / "tests" / "plugin_package"
SCENARIO = """\
format: 2
seed: 3
data: {source: blocks, path: ratings.txt}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: item-means}
rounds: {count: 2, cohort: 5, deadline: 60 s, selection: most-data}
faults:
  - {name: storm, on: {fraction: 50%}, solar_flare: {left: 20%}}
"""
RATINGS = "".join(
    f"user u{user}\n" + "".join(f"i{item} {1 + item % 5}\n" for item in range(9)) for user in range(9)
)
USED = ("item-means", "solar_flare", "blocks", "most-data")
NAMES = (*USED, "round-times")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """Install the package in an environment of its own."""
    made = install(tmp_path_factory.mktemp("equipped"), wheel)
    # A build leaves files beside the sources.
    source = shutil.copytree(PACKAGE, made.folder / "source")
    # A reader and a sink as init writes them, with entry points of their own.
    for kind, name in (("reader", "blocks"), ("sink", "round-times")):
        files = starter_files(kind, name)
        module = next(iter(files))
        (source / "recfleet_sample" / module).write_text(files[module], encoding="utf-8")
        target = f"recfleet_sample.{Path(module).stem}:{name.title().replace('-', '')}"
        with (source / "pyproject.toml").open("a", encoding="utf-8") as project:
            project.write(f'\n[project.entry-points."recfleet.{kind}s"]\n{name} = "{target}"\n')
    pip("--python", str(made.bin / "python"), "install", "--quiet", "--no-deps", str(source))
    return made


def test_what_it_brings_is_used_as_if_built_in(equipped: Installation, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "ratings.txt").write_text(RATINGS, encoding="utf-8")
    checked = equipped.run("recfleet validate s.yaml", tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "s.yaml: ok\n"), checked.stderr
    done = equipped.run("recfleet run s.yaml --quiet --out run --sink round-times=rounds.csv", tmp_path)
    assert done.returncode == 0, done.stderr
    used = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))["plugins"]
    assert [(one["name"], one["origin"], one["version"]) for one in used] == [
        (name, "recfleet-sample", "1.2") for name in USED
    ]
    assert len({one["hash"] for one in used}) == 1  # of the whole package
    assert (tmp_path / "rounds.csv").read_text(encoding="utf-8").splitlines()[
        -1
    ] == "# finished; missed: nothing"


def test_it_is_listed_and_checked(equipped: Installation, tmp_path: Path) -> None:
    listed = equipped.run("recfleet plugins --json found.json", tmp_path)
    assert listed.returncode == 0, listed.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["plugins"]
    assert {one["name"] for one in found if one["origin"] == "recfleet-sample"} == set(NAMES)
    for name in NAMES:
        done = equipped.run(f"recfleet check-plugin {name}", tmp_path)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count(": ok\n") >= (1 if name == "round-times" else 3)


def test_the_swarm_draws_it(equipped: Installation, tmp_path: Path) -> None:
    program = (
        "from coordinator.swarm.generator import document, text_of\n"
        "drawn = [text_of(document(3, index)) for index in range(150)]\n"
        "print(*(sum(name in text for text in drawn) for name in ('item-means', 'solar_flare', 'most-data')))"
    )
    done = equipped.run(f'python -c "{program}"', tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(int(count) > 0 for count in done.stdout.split()), done.stdout
    assert equipped.run("recfleet swarm --scenarios 4 --workers 1", tmp_path).returncode == 0
