"""What is installed: dependencies, data files, the command, and what the documents promise about them."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.installation import requirements

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("edge", "coordinator", "device_profiles", "recfleet")
PROVIDED_BY = {
    "ruamel": "ruamel.yaml",
    "pydantic_core": "pydantic",
    "dp_accounting": "dp-accounting",
    "prometheus_client": "prometheus-client",
    "mlflow": "mlflow-skinny",
}
"""The distribution to depend on, where it is not called like what is imported."""
OPTIONAL = ("dp", "export", "mlflow", "pytest", "ray", "service", "tensorboard", "torch", "tune")
"""Extras whose packages are imported by the product, inside the functions that need them."""
PYTEST_PLUGIN = ROOT / "recfleet" / "pytest_plugin.py"
"""Is imported by pytest alone, and so may import it."""

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def third_party_imports(*, of_modules_only: bool = False) -> set[str]:
    found: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if of_modules_only and path == PYTEST_PLUGIN:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if of_modules_only else ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


@pytest.mark.slow
def test_every_import_is_a_declared_dependency() -> None:
    always = set(requirements(PYPROJECT["project"]["dependencies"]))
    extras = PYPROJECT["project"]["optional-dependencies"]
    sometimes = always.union(*(requirements(extras[extra]) for extra in OPTIONAL))
    assert {PROVIDED_BY.get(name, name) for name in third_party_imports()} <= sometimes
    assert {PROVIDED_BY.get(name, name) for name in third_party_imports(of_modules_only=True)} <= always


def test_every_dependency_is_bounded_below_and_above() -> None:
    unbounded = [line for line in PYPROJECT["project"]["dependencies"] if ">=" not in line or "<" not in line]
    assert unbounded == []


def test_the_packages_are_typed() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def test_the_command_is_what_the_distribution_says() -> None:
    module, _, attribute = PYPROJECT["project"]["scripts"]["recfleet"].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == PYPROJECT["project"]["version"]
