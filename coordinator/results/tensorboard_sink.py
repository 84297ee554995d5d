"""Runs in TensorBoard: series as scalars, settings as hyperparameters, verdicts and the report as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.engine.run_files import REPORT
from coordinator.results.trackers import SeriesPoint, Tracker
from edge.core.errors import MissingExtraError, PluginError

__all__ = ["TensorBoardSink"]


class TensorBoardSink(Tracker):
    """Writes event files for TensorBoard, of each run in a folder of its own below the target.

    The step of a scalar is the round, its wall time the time of the run, from when the run began here. Values
    are float32, as TensorBoard has them.
    """

    name = "tensorboard"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        if not target:
            raise PluginError("--sink tensorboard: writes to a folder; name one, 'tensorboard=logs'")
        try:
            # Not above: protobuf, and an extra.
            from tensorboardX import SummaryWriter  # noqa: PLC0415
            from tensorboardX.summary import hparams  # noqa: PLC0415
        except ImportError as error:
            message = "the sink 'tensorboard' needs tensorboardX: pip install 'recfleet[tensorboard]'"
            raise MissingExtraError(message) from error
        self._writer_of: Any = SummaryWriter
        self._hparams: Any = hparams
        self._writer: Any = None
        self._settings: dict[str, str] = {}
        self._last: dict[str, float] = {}

    def open_run(self, facts: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Make a folder of the run's name; one that is there already is another run, and left alone."""
        folder, number = Path(self.target) / self.run_name, 1
        while folder.exists():
            number += 1
            folder = Path(self.target) / f"{self.run_name}-{number}"
        self._writer = self._writer_of(logdir=str(folder))
        self._settings = dict(settings)
        rows = [f"| {key} | {_cell(text)} |" for key, text in settings.items()]
        self._write_text("settings", ["| key | value |", "| --- | --- |", *rows])

    def log_points(self, points: Sequence[SeriesPoint]) -> None:
        """Write scalars, and let readers see them."""
        for one in points:
            self._writer.add_scalar(one.name, one.value, one.step, walltime=self.began_s + one.time_s)
            self._last[one.name] = one.value
        self._writer.flush()

    def close_run(
        self, status: str, tags: Mapping[str, str], verdicts: Sequence[Mapping[str, Any]], directory: Path
    ) -> None:
        """Write verdicts, where the report is, and the hyperparameters with the last values."""
        rows = [
            f"| {'held' if one['held'] else 'MISSED'} | {_cell(one['threshold'])} | {one['shown']['value']} |"
            for one in verdicts
        ]
        self._write_text("verdicts", ["| verdict | threshold | value |", "| --- | --- | --- |", *rows])
        self._write_text("report", [f"{status}: {directory / REPORT}"])
        # Not by add_hparams: that writes every last value again, as a point of a step of its own.
        for summary in self._hparams(
            {key: _number(text) for key, text in self._settings.items()}, self._last
        ):
            self._writer.file_writer.add_summary(summary)
        self._writer.close()

    def _write_text(self, tag: str, lines: Sequence[str]) -> None:
        self._writer.add_text(tag, "\n".join(lines), 0, walltime=self.began_s)


def _number(text: str) -> float | str:
    """Return the number that a text is, so that TensorBoard sorts by it; the text where it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def _cell(text: str) -> str:
    """Return a text as a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
