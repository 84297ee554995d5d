"""Runs in MLflow: settings as parameters, series as metrics, verdicts as tags, the report as an artefact."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from coordinator.engine.run_files import ENDED, REPORT, RESOLVED_SCENARIO, SUMMARY
from coordinator.results.trackers import SeriesPoint, Tracker
from edge.core.errors import MissingExtraError

__all__ = ["MlflowSink"]

_EXPERIMENT: Final = "MLFLOW_EXPERIMENT_NAME"
_ARTEFACTS: Final = (REPORT, RESOLVED_SCENARIO, SUMMARY)
_AT_ONCE: Final = {"metrics": 1000, "params": 100, "tags": 100}
"""What MLflow takes in one request."""
_LONGEST_PARAMETER: Final = 500
"""Characters of a parameter that every version takes; the scenario is an artefact, whole."""
_LONGEST_TAG: Final = 250
_STATUSES: Final = {"interrupted": "KILLED", "killed": "KILLED", "running": "RUNNING"}
_Item = TypeVar("_Item")


class MlflowSink(Tracker):
    """Writes to an MLflow server, or to what else a tracking URI names.

    The target is the URI, that of ``MLFLOW_TRACKING_URI`` without one. The experiment is that of
    ``MLFLOW_EXPERIMENT_NAME``, or has the name of the scenario. The step of a metric is the round, its
    timestamp the time of the run, from when the run began here.
    """

    name = "mlflow"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        try:
            # Not above: two seconds, and an extra.
            from mlflow import entities  # noqa: PLC0415
            from mlflow.tracking import MlflowClient  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(
                "the sink 'mlflow' needs MLflow: pip install 'recfleet[mlflow]'"
            ) from error
        self._entities = entities
        self._client: Any = MlflowClient(tracking_uri=target or None)
        self._run_id = ""

    def open_run(self, facts: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Create the run, in its experiment, with the settings as parameters."""
        experiment = os.environ.get(_EXPERIMENT) or facts["scenario"]
        found = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run = self._client.create_run(place, start_time=self._ms(0.0), run_name=self.run_name)
        self._run_id = run.info.run_id
        tags = {
            "recfleet.scenario": facts["scenario"],
            "recfleet.scenario_hash": facts["scenario_hash"],
            "recfleet.clock": facts["clock"],
            "mlflow.note.content": facts["title"] or "",
        }
        self._send("tags", (self._entities.RunTag(key, text) for key, text in tags.items()))
        self._send(
            "params",
            (self._entities.Param(key[:_LONGEST_TAG], _cut(text)) for key, text in settings.items()),
        )

    def log_points(self, points: Sequence[SeriesPoint]) -> None:
        """Log metrics."""
        made = (self._entities.Metric(one.name, one.value, self._ms(one.time_s), one.step) for one in points)
        self._send("metrics", made)

    def close_run(
        self, status: str, tags: Mapping[str, str], verdicts: Sequence[Mapping[str, Any]], directory: Path
    ) -> None:
        """Set tags, log the report, and end the run."""
        held = "yes" if status in ENDED and all(one["held"] for one in verdicts) else "no"
        said = {"recfleet.status": status, "recfleet.held": held, "recfleet.directory": str(directory)}
        made = (self._entities.RunTag(key[:_LONGEST_TAG], text) for key, text in {**said, **tags}.items())
        self._send("tags", made)
        for name in _ARTEFACTS:
            if (directory / name).is_file():
                self._client.log_artifact(self._run_id, str(directory / name))
        ended = "FINISHED" if status in ENDED else _STATUSES.get(status, "FAILED")
        self._client.set_terminated(self._run_id, ended)

    def _ms(self, time_s: float) -> int:
        return round((self.began_s + time_s) * 1000)

    def _send(self, kind: str, items: Iterable[Any]) -> None:
        for some in _batches(items, _AT_ONCE[kind]):
            self._client.log_batch(self._run_id, **{kind: some})


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_PARAMETER else text[: _LONGEST_PARAMETER - 1] + "…"


def _batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    left = iter(items)
    while some := list(itertools.islice(left, size)):
        yield some
