"""Every built-in method, fault and selector keeps the rules that ``recfleet check-plugin`` checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.swarm.conformance import _declared_mean, conform
from coordinator.swarm.generator import document_of
from edge.core import plugins
from edge.learning.methods.fedmf import FedMF

UNRULY = '''
from typing import Literal

import numpy as np
from pydantic import Field

from coordinator.simulation.faults.base import FaultKind, Strike
from coordinator.engine.selection.base import AvailableSettings, Policy
from edge.core.vocabulary import Reason


class Everywhere(FaultKind):
    """It strikes all that are invited, whoever it is aimed at."""

    key = "everywhere"
    summary = "everybody is struck"

    def strike(self, strike: Strike) -> None:
        strike.setting.plan.shortage[:] = [Reason.MEMORY] * len(strike.setting.ids)


class EveryoneSettings(AvailableSettings):
    """Everybody, free or not."""

    policy: Literal["everyone"]


class Everyone(Policy):
    """Draws more than are wanted."""

    Settings = EveryoneSettings

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float):
        return np.arange(self.pool.n)
'''

EXTRAS = {("sinks", "mlflow"): "mlflow", ("sinks", "tensorboard"): "tensorboardX"}
"""Packages that a built-in needs, where that is an extra."""
EVERY = [(kind, name) for kind in plugins.KINDS for name in plugins.BUILT_IN[kind]]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
@pytest.mark.few(3)
def test_a_built_in_keeps_the_rules(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (kind, name) in EXTRAS:
        pytest.importorskip(EXTRAS[kind, name], reason=f"needs the extra {name}")
        # Its target is a folder here.
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    findings = list(conform(plugins.entries(kind)[name]))
    assert len(findings) >= (1 if kind in ("readers", "sinks") else 4)
    assert [finding for finding in findings if finding.problem is not None] == []


def test_a_method_that_reads_the_mean_and_says_that_it_does_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [document_of(1, number, "fedmf") for number in range(3)]
    assert list(_declared_mean(made)) == []
    monkeypatch.setattr(FedMF, "begins_with_mean", classmethod(lambda *_: False))
    assert any("reads 'rating_mean'" in problem for problem in _declared_mean(made))


def test_what_breaks_a_rule_is_named(tmp_path: Path) -> None:
    file = tmp_path / "unruly.py"
    file.write_text(UNRULY, encoding="utf-8")
    with plugins.scope():
        broken = {
            entry.name: {finding.rule for finding in conform(entry) if finding.problem is not None}
            for entry in plugins.load(file)
        }
    assert broken == {
        "everywhere": {
            "nothing changes while it is inactive",
            "only those are struck that it is aimed at",
            "nothing is touched but what it declares",
        },
        "everyone": {
            "only free and available devices are drawn, each once, and no more than wanted",
        },
    }
