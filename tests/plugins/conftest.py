from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge.core import plugins


@pytest.fixture(autouse=True)
def own_plugins() -> Iterator[None]:
    """Forget, after a test, the plug-ins that it has loaded."""
    with plugins.scope():
        yield
