"""What a user sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordinator.engine.facts import MetricValue
from coordinator.scenario.clock_words import SIMULATED
from device_profiles.units import format_duration
from edge.core.vocabulary import RoundOutcome, label

_SECONDS_BETWEEN_LINES: Final = 1.0


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """A finished round, in the figures that progress shows.

    Attributes
    ----------
    round_number : its number, counted from 1.
    phase : name of the scenario's phase.
    completed, dropped, late : device rounds that ended so.
    simulated_s : time of the run at its end.
    loss : training loss of the applied reports; NaN when there is none.
    abandoned : the reason's label when nothing was applied, else None.
    """

    round_number: int
    phase: str
    completed: int
    dropped: int
    late: int
    simulated_s: float
    loss: float
    abandoned: str | None


def round_summary(row: Mapping[str, Any]) -> RoundSummary:
    """Return the figures of a row of the table ``rounds``: plain values by column, None where null."""
    return RoundSummary(
        round_number=row["round"],
        phase=row["phase"],
        completed=row["completed"],
        dropped=row["dropped"],
        late=row["late"],
        simulated_s=row["end_s"],
        loss=math.nan if row["loss"] is None else row["loss"],
        abandoned=row["reason"] if row["outcome"] == label(RoundOutcome.ABANDONED) else None,
    )


class RunObserver(Protocol):
    """Is told what happens in a run; nothing it does changes the run."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Handle the run's name and number of rounds (None: not known beforehand)."""
        ...

    def on_round(self, summary: RoundSummary) -> None:
        """Handle a finished round."""
        ...

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Handle an evaluation after ``round_number`` rounds."""
        ...

    def on_end(self, status: str) -> None:
        """Handle the end, with the status of the run."""
        ...


class Observers:
    """Tells several observers, in their order."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def on_start(self, name: str, rounds: int | None) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_start(name, rounds)

    def on_round(self, summary: RoundSummary) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_round(summary)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_evaluation(round_number, values)

    def on_end(self, status: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_end(status)


def _loss(loss: float) -> str:
    return "–" if math.isnan(loss) else f"{loss:.5g}"


def _evaluated(values: Sequence[MetricValue]) -> str:
    overall = [value for value in values if value.tag == "all"]
    return (
        "nothing to score"
        if not overall
        else ", ".join(
            f"{value.metric} {value.value:.5g}" + (" (unseen users)" if value.population == "unseen" else "")
            for value in overall
        )
    )


class SilentProgress:
    """Says nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Say nothing."""

    def on_round(self, summary: RoundSummary) -> None:
        """Say nothing."""

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Say nothing."""

    def on_end(self, status: str) -> None:
        """Say nothing."""


class PlainProgress:
    """A line per round, at most one a second; the first, the last and every abandoned round always.

    A round is reported when the last of its devices is done, which can be after the evaluation of its model:
    the line of the evaluation waits for that of the round.

    Parameters
    ----------
    write : takes one line without its end, for example ``click.echo``.
    clock : seconds of wall time, monotonic.
    time_is : what the time of a run is called: ``simulated``, or ``real``.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        time_is: str = SIMULATED,
    ) -> None:
        self._write = write
        self._time_is = time_is
        self._clock = clock
        self._started_s = clock()
        self._shown_s = -math.inf
        self._rounds: int | None = None
        self._unshown: RoundSummary | None = None
        self._reported = 0
        self._waiting: list[tuple[int, str]] = []

    def on_start(self, name: str, rounds: int | None) -> None:
        """Write the name of the run and the number of rounds."""
        self._rounds = rounds
        self._started_s = self._clock()
        self._write(f"{name}: {rounds} rounds" if rounds is not None else name)

    def on_round(self, summary: RoundSummary) -> None:
        """Write a line unless one was written less than a second ago."""
        self._write_waiting(summary.round_number - 1)
        self._reported = summary.round_number
        if summary.abandoned is None and self._clock() - self._shown_s < _SECONDS_BETWEEN_LINES:
            self._unshown = summary
        else:
            self._line(summary)
        self._write_waiting(summary.round_number)

    def _write_waiting(self, until: float) -> None:
        """Write the evaluations after rounds up to ``until``, and before them the last round."""
        due = [text for number, text in self._waiting if number <= until]
        self._waiting = [one for one in self._waiting if one[0] > until]
        if due and self._unshown is not None:
            self._line(self._unshown)
        for text in due:
            self._write(text)

    def _line(self, summary: RoundSummary) -> None:
        self._unshown = None
        self._shown_s = self._clock()
        number = f"round {summary.round_number}" + (f"/{self._rounds}" if self._rounds is not None else "")
        phase = f" [{summary.phase}]" if summary.phase else ""
        ending = f", abandoned: {summary.abandoned}" if summary.abandoned is not None else ""
        self._write(
            f"{number}{phase}: {summary.completed} completed, {summary.dropped} dropped, "
            f"{summary.late} late, loss {_loss(summary.loss)}, "
            f"{self._time_is} {format_duration(summary.simulated_s)}, "
            f"wall {format_duration(self._shown_s - self._started_s)}{ending}"
        )

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Write the values over all users, once the round has been reported."""
        self._waiting.append((round_number, f"after round {round_number}: {_evaluated(values)}"))
        self._write_waiting(self._reported)

    def on_end(self, status: str) -> None:
        """Write the last round if it has not been, and how the run ended."""
        if self._unshown is not None:
            self._line(self._unshown)
        self._write_waiting(math.inf)
        self._write(f"{status} after {format_duration(self._clock() - self._started_s)}")


class TerminalProgress:
    """A progress bar that redraws itself; evaluations stay above it as lines.

    Parameters
    ----------
    console : of the terminal.
    time_is : what the time of a run is called: ``simulated``, or ``real``.

    Use it as a context manager: leaving it gives the terminal back, whatever happened.
    """

    def __init__(self, console: Console, time_is: str = SIMULATED) -> None:
        self._time_is = time_is
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_start(self, name: str, rounds: int | None) -> None:
        """Draw the bar."""
        self._progress.start()
        self._task = self._progress.add_task(name, total=rounds, figures="")

    def on_round(self, summary: RoundSummary) -> None:
        """Advance the bar and renew its figures."""
        if self._task is None:
            raise ValueError("a round was reported before the run's start")
        ending = f" · abandoned: {summary.abandoned}" if summary.abandoned is not None else ""
        figures = (
            f"{summary.completed} completed · {summary.dropped} dropped · {summary.late} late · "
            f"loss {_loss(summary.loss)} · {self._time_is} {format_duration(summary.simulated_s)}{ending}"
        )
        self._progress.update(self._task, completed=summary.round_number, figures=figures)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Print the values over all users above the bar."""
        text = f"after round {round_number}: {_evaluated(values)}"
        self._progress.print(text, markup=False, highlight=False)

    def on_end(self, status: str) -> None:
        """Leave the bar as it is and say how the run ended."""
        self._progress.stop()
        self._progress.console.print(status, markup=False, highlight=False)
