"""Every built-in method, fault and selector keeps the rules that ``recfleet check-plugin`` checks."""

from __future__ import annotations

import pytest

from coordinator.swarm.conformance import conform
from edge import plugins

EVERY = [(kind, name) for kind in plugins.KINDS for name in plugins.BUILT_IN[kind]]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
def test_a_built_in_keeps_the_rules(kind: str, name: str) -> None:
    findings = list(conform(plugins.entries(kind)[name]))
    assert len(findings) >= 4
    assert [finding for finding in findings if finding.problem is not None] == []
