"""The fixture ``recfleet_run``, its subtests recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recfleet
from coordinator import api
from recfleet.pytest_plugin import RecfleetRun, recfleet_run

__all__ = ["recfleet_run"]

SMALL = {
    "format": 2,
    "seed": 3,
    "data": {"source": "synthetic-ratings", "users": 20, "items": 30, "ratings_per_user": 10},
    "fleet": {"mix": "enterprise_wifi", "availability": "always_on"},
    "learning": {"algorithm": "fedrecon", "factors": 2},
    "rounds": {"count": 2, "cohort": 5, "quorum": 1, "deadline": "60 s"},
    "thresholds": {"round.completed": ["rate == 100%"], "round.duration": ["max < 1 ms"]},
}


class RecordedSubtests:
    """Takes the place of pytest's own: what fails is kept, and no failure of the test that looks at it."""

    def __init__(self) -> None:
        self.failures: dict[str, str | None] = {}
        """Why each subtest failed, by its message; None where it passed."""

    @contextmanager
    def test(self, message: str) -> Iterator[None]:
        self.failures[message] = None
        try:
            yield
        except pytest.fail.Exception as failure:
            self.failures[message] = str(failure)


@pytest.fixture
def subtests() -> RecordedSubtests:
    return RecordedSubtests()


def test_each_threshold_is_a_subtest_and_what_was_missed_fails(
    recfleet_run: RecfleetRun, subtests: RecordedSubtests
) -> None:
    run = recfleet_run(SMALL)
    assert isinstance(run, recfleet.Run)
    assert list(subtests.failures) == ["round.completed: rate == 100%", "round.duration: max < 1 ms"]
    held, missed = subtests.failures.values()
    assert held is None
    assert missed is not None
    assert missed.startswith("MISSED round.duration: max < 1 ms (it was ")
    assert Path(missed.rpartition("report: ")[2]).is_file()


def test_settings_are_laid_over_by_section_and_by_key(
    recfleet_run: RecfleetRun, subtests: RecordedSubtests
) -> None:
    run = recfleet_run(SMALL, seed=8, rounds={"cohort": 4}, thresholds=None, **{"rounds.count": 1})
    assert (run.scenario.seed, run.rounds.num_rows, run.device_rounds.num_rows) == (8, 1, 4)
    assert subtests.failures == {}


def test_a_path_begins_at_the_folder_of_the_test(
    recfleet_run: RecfleetRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(recfleet.ScenarioError, match=str(Path(__file__).parent / "gone.yaml")):
        recfleet_run("gone.yaml")
    with pytest.raises(recfleet.ScenarioError, match=r"rounds\.cohrt: unknown key"):
        recfleet_run("quickstart", rounds={"cohrt": 4})


def test_an_interrupted_run_interrupts_the_tests(
    recfleet_run: RecfleetRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = api.run

    def interrupted(scenario: api.ScenarioLike, **arguments: object) -> api.Run:
        return run(scenario, on_round=lambda row: False, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(api, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recfleet_run(SMALL)


def test_a_pytest_without_subtests_is_refused(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest, "version_tuple", (8, 4, 2))
    with pytest.raises(pytest.UsageError, match=r"pip install 'recfleet\[pytest\]'"):
        request.getfixturevalue("recfleet_run")
