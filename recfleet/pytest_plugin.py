"""The pytest plugin: scenarios as tests, their thresholds as subtests.

pytest loads it by the entry point ``pytest11`` wherever recfleet is installed; nothing else of recfleet is
imported before a test asks for the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

if TYPE_CHECKING:
    from coordinator.api import Run, Scenario

__all__ = ["RecfleetRun", "recfleet_run"]

RecfleetRun: TypeAlias = "Callable[..., Run]"
"""Type of the fixture ``recfleet_run``."""

LEAST_PYTEST: Final = (9, 0)
"""The first version with subtests; the extra ``pytest`` has it, too."""


@pytest.fixture
def recfleet_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RecfleetRun:
    """Give a function that runs a scenario, and makes a subtest of each of its thresholds.

    ``recfleet_run(scenario, **settings)`` returns the :class:`recfleet.Run`. A missed threshold fails its
    subtest, and the test with it once that has gone to its end.

    Parameters of the function
    --------------------------
    scenario : path of a file, from the folder of the test; name of a shipped scenario; dictionary; or a
        :class:`recfleet.Scenario`.
    settings : laid over it, a keyword a key: ``seed=7``, ``rounds={"count": 10}``,
        ``**{"rounds.count": 10}``. None removes a key.

    The run directory is in a temporary folder of pytest; a failure names its report. Ctrl-C ends the run in
    order, and then the tests.

    Raises
    ------
    ScenarioError, DataError, PluginError : the scenario, its data or what it uses is wrong.
    UsageError : this pytest has no subtests.
    """
    if pytest.version_tuple[:2] < LEAST_PYTEST:
        raise pytest.UsageError(
            f"recfleet_run makes subtests, which pytest {pytest.__version__} does not have: "
            "pip install 'recfleet[pytest]'"
        )
    subtests: pytest.Subtests = request.getfixturevalue("subtests")

    def run(scenario: Scenario | Mapping[str, object] | str | os.PathLike[str], /, **settings: Any) -> Run:
        # Only by tests that run something: numpy and pydantic take their time.
        from coordinator import api  # noqa: PLC0415
        from coordinator.scenario.shipped import is_name  # noqa: PLC0415

        if isinstance(scenario, str | os.PathLike) and not is_name(os.fspath(scenario)):
            scenario = request.path.parent / scenario
        done = api.run(scenario, set=settings, out=tmp_path_factory.mktemp("recfleet") / "run")
        if done.status == "interrupted":
            raise KeyboardInterrupt
        for verdict in done.thresholds:
            with subtests.test(verdict.threshold):
                if not verdict.held:
                    pytest.fail(f"{verdict}\nreport: {done.report()}", pytrace=False)
        return done

    return run
