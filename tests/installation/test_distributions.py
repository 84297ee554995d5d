"""What is uploaded for a release: the archives as they are built, checked as a registry would."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from installed import ROOT, build_wheel

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PYPROJECT["project"]["version"]
PACKAGES = ("edge", "coordinator", "device_profiles", "recfleet")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, of the extra dev, to build a source distribution")
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "uv", "build", "--quiet", "--sdist", "--out-dir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.tar.gz")
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_registry_takes_both(sdist: Path, wheel: Path) -> None:
    if importlib.util.find_spec("twine") is None:
        pytest.skip("needs twine, of the extra dev")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_wheel_holds_what_is_used_and_no_tests(wheel: Path) -> None:
    names = names_in(wheel)
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    for folder, shipped, suffix in (
        ("scenarios", "coordinator/scenario/files", "yaml"),
        ("device_profiles/catalogue", "device_profiles/catalogue", "yaml"),
        ("coordinator/scenario/templates", "coordinator/scenario/templates", "*"),
    ):
        files = [path.name for path in (ROOT / folder).glob(f"*.{suffix}")]
        assert files
        assert {f"{shipped}/{name}" for name in files} <= names
    assert [name for name in names if "test" in Path(name).parts[0] or Path(name).name == "conftest.py"] == []
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"recfleet-{VERSION}.dist-info/METADATA").decode())
    assert metadata["Version"] == VERSION
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_source_distribution_holds_what_makes_and_tests_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(name).parts[1:] for name in archive.getnames()}
    top = {parts[0] for parts in names if parts}
    assert top == {
        *PACKAGES, "tests", "scenarios", "benchmarks", "docs",
        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO", "pyproject.toml", ".gitignore",
    }  # fmt: skip
    assert [parts for parts in names if "__pycache__" in parts or "runs" in parts[:1]] == []


def test_a_wheel_built_from_the_source_distribution_is_that_of_the_checkout(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    assert names_in(build_wheel(tmp_path, sdist)) == names_in(wheel)
