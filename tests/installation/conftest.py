from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from installed import Installation, build_wheel, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes that share the tests: two builds at a time get into each other's way."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / "wheel" / "built"
        if not built.is_file():
            built.parent.mkdir(exist_ok=True)
            built.write_text(str(build_wheel(built.parent)), encoding="utf-8")
        return Path(built.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    return install(tmp_path_factory.mktemp("installation"), wheel)
