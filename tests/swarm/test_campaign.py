from __future__ import annotations

import itertools
import os
from typing import Any
from xml.etree import ElementTree

import pytest
from swarm_helpers import PLAIN

from coordinator.cli.consoles import console
from coordinator.cluster.local import LocalCluster
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.training import Training
from coordinator.results.junit import junit_xml
from coordinator.swarm.campaign import Findings, Plan, run_campaign
from coordinator.swarm.generator import document, text_of
from coordinator.swarm.invariants.registry import Violation
from coordinator.swarm.report import NAMES, progress_line, render, suite_of
from coordinator.swarm.trial import run_trial
from coordinator.swarm.verdict import KINDS, MODES, PARTS, STAGES, digest_of, judge, judge_text
from coordinator.swarm.workers import start_judging

SEED = 20261128


@pytest.mark.slow
def test_a_short_swarm() -> None:
    for index in range(40):
        assert judge(SEED, index).violations == (), f"recfleet swarm --seed {SEED} --only {index}"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_swarm_of_several_processes(jobs: int) -> None:
    lines = []
    plan = Plan(seed=1, indices=range(8), choice=ClusterChoice(workers=jobs), thorough=True)
    found = run_campaign(plan, lambda so_far: lines.append(progress_line(so_far)))
    assert (found.scenarios, found.repeated, found.failures) == (8, 8, {})
    assert {section for section, _, _ in found.coverage} == {MODES, KINDS, STAGES, PARTS}
    assert lines[-1].startswith("8 scenarios, ")


def test_a_swarm_ends_with_its_time() -> None:
    found = run_campaign(Plan(seed=1, indices=itertools.count(), seconds=1e-9), lambda _: None)
    assert found.scenarios == 0


@pytest.mark.slow
def test_processes_hash_in_their_own_way() -> None:
    made = text_of(document(1, 3))
    before = os.environ.get("PYTHONHASHSEED")
    with LocalCluster(2) as cluster:
        workers = [start_judging(cluster, number) for number in (1, 2)]
        assert set(cluster.gather(cluster.call_all(workers, "digest", made))) == {digest_of(made)}
        (verdict,) = cluster.gather([cluster.call(workers[0], "judge", 1, 3, False)])
        assert verdict.digest == digest_of(made)
    assert os.environ.get("PYTHONHASHSEED") == before


@pytest.mark.slow
def test_a_process_that_fails_says_so() -> None:
    plan = Plan(seed=-1, indices=range(1))
    with pytest.raises(ValueError, match="non-negative"):
        run_campaign(plan, lambda _: None)


def test_a_run_that_differs_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run leaves behind, the next one starts with."""
    leaked: list[int] = []
    select = Training._select

    async def leaking(self: Training, *arguments: Any) -> Any:
        ids = await select(self, *arguments)
        leaked.append(0)
        return ids if ids is None else ids[: max(1, len(ids) - len(leaked) // 4)]

    monkeypatch.setattr(Training, "_select", leaking)
    (violation,) = judge_text(PLAIN).violations
    assert violation.invariant == "replays"


def test_a_scenario_that_is_not_valid() -> None:
    (violation,) = judge_text("format: 2\n").violations
    assert violation.invariant == "valid"


def test_a_digest_covers_the_model() -> None:
    trial = run_trial(PLAIN, "one")
    before = trial.digest()
    trial.last = {name: array + 1 for name, array in trial.last.items()}
    assert trial.digest() != before


def test_findings_as_a_terminal_and_as_junit_show_them() -> None:
    verdict = judge(1, 0)
    failures = {7: [Violation("ends", 'a <bug> & "more"')], 9: [Violation("ends", "another")]}
    found = Findings(2, 1, failures, verdict.coverage, wall_s=3.0)
    assert progress_line(found) == "2 scenarios, 40 a minute, 2 failed"
    output = console()
    with output.capture() as captured:
        output.print(render(found))
    assert (
        "2 scenarios in 3 s, 40 a minute (1 of them repeated in another process): 2 failed" in captured.get()
    )
    (suite,) = ElementTree.fromstring(junit_xml([suite_of(1, found)]))
    assert suite.attrib["failures"] == "1"
    assert [case.attrib["name"] for case in suite] == ["2 scenarios", *NAMES]
    assert suite.attrib["time"] == suite[0].attrib["time"] == "3.000"
    (failure,) = suite.iter("failure")
    assert 'scenario 7: a <bug> & "more"' in failure.attrib["message"]
    assert "recfleet swarm --seed 1 --only 9" in failure.attrib["message"]


@pytest.mark.slow
def test_an_interrupted_swarm_tells_what_it_has_found() -> None:
    def interrupt(found: Findings) -> None:
        if found.scenarios == 3:
            raise KeyboardInterrupt

    found = run_campaign(Plan(seed=1, indices=itertools.count()), interrupt)
    assert found.interrupted
    assert found.scenarios == 3
