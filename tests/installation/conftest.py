from __future__ import annotations

from pathlib import Path

import pytest
from installed import Installation, build_wheel, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    return install(tmp_path_factory.mktemp("installation"), wheel)
