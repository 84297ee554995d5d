"""What a user sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.engine.run_files import SIMULATED
from device_profiles.units import format_duration
from edge.core.vocabulary import RoundOutcome, label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES: Final = 1.0
_ABANDONED: Final = label(RoundOutcome.ABANDONED)


class RunObserver:
    """Hooks of a run, each of which does nothing by default; what they do changes nothing in the run."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Handle the run's name and number of rounds (None: not known beforehand)."""

    def on_round(self, row: RoundRow) -> None:
        """Handle a finished round, by its row."""

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Handle an evaluation after ``round_number`` rounds."""

    def on_end(self, status: str) -> None:
        """Handle the end, with the status of the run."""


class Observers(RunObserver):
    """Several observers, called in their order."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def on_start(self, name: str, rounds: int | None) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_start(name, rounds)

    def on_round(self, row: RoundRow) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_round(row)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_evaluation(round_number, values)

    def on_end(self, status: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_end(status)


def _loss(row: RoundRow) -> str:
    return "–" if row["loss"] is None else f"{row['loss']:.5g}"


def _ending(row: RoundRow, separator: str) -> str:
    return f"{separator}abandoned: {row['reason']}" if row["outcome"] == _ABANDONED else ""


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


class InterruptibleProgress(RunObserver):
    """Says nothing, and ends a run in order once :meth:`interrupt` has been called.

    Only between rounds and evaluations: a ``KeyboardInterrupt`` out of a signal handler may strike anywhere,
    and where it strikes a finaliser it is lost.
    """

    def __init__(self) -> None:
        self._asked = False

    def interrupt(self) -> None:
        """Let the run end at its next round or evaluation; from any thread, or from a signal handler."""
        self._asked = True

    def on_start(self, name: str, rounds: int | None) -> None:
        """Raise ``KeyboardInterrupt`` if the run shall end."""
        if self._asked:
            raise KeyboardInterrupt

    def on_round(self, row: RoundRow) -> None:
        """Raise ``KeyboardInterrupt`` if the run shall end."""
        if self._asked:
            raise KeyboardInterrupt

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Raise ``KeyboardInterrupt`` if the run shall end."""
        if self._asked:
            raise KeyboardInterrupt


class TimeLeft:
    """Estimates how long work still takes of which every part takes about as long.

    Parameters
    ----------
    total : parts.
    workers : parts that are done at a time.
    clock : seconds of wall time, monotonic.
    """

    def __init__(self, total: int, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = total
        self._workers = min(workers, total)
        self._clock = clock
        self._started_s = clock()
        self._done = 0

    def skipped(self) -> None:
        """Count a part that took no time."""
        self._left -= 1

    def done(self) -> None:
        """Count a part that has ended."""
        self._left -= 1
        self._done += 1

    def left_s(self) -> float | None:
        """Return how long the rest takes, seconds; None as long as no part has ended."""
        if not self._done:
            return None
        # The first that end were begun together.
        return self._left * (self._clock() - self._started_s) / max(self._done, self._workers)


def left_in_words(left_s: float | None) -> str:
    """Return what a line of progress says of the time left, to be appended; empty where nothing is known."""
    return "" if not left_s else f"; about {format_duration(float(f'{left_s:.1e}'))} left"


class PlainProgress(RunObserver):
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
        self._unshown: RoundRow | None = None
        self._reported = 0
        self._waiting: list[tuple[int, str]] = []

    def on_start(self, name: str, rounds: int | None) -> None:
        """Write the name of the run and the number of rounds."""
        self._rounds = rounds
        self._started_s = self._clock()
        self._write(f"{name}: {rounds} rounds" if rounds is not None else name)

    def on_round(self, row: RoundRow) -> None:
        """Write a line unless one was written less than a second ago."""
        number = self._reported = row["round"]
        self._write_waiting(number - 1)
        if row["outcome"] != _ABANDONED and self._clock() - self._shown_s < _SECONDS_BETWEEN_LINES:
            self._unshown = row
        else:
            self._line(row)
        self._write_waiting(number)

    def _write_waiting(self, until: float) -> None:
        """Write the evaluations after rounds up to ``until``, and before them the last round."""
        due = [text for number, text in self._waiting if number <= until]
        self._waiting = [one for one in self._waiting if one[0] > until]
        if due and self._unshown is not None:
            self._line(self._unshown)
        for text in due:
            self._write(text)

    def _line(self, row: RoundRow) -> None:
        self._unshown = None
        self._shown_s = self._clock()
        number = f"round {row['round']}" + (f"/{self._rounds}" if self._rounds is not None else "")
        phase = f" [{row['phase']}]" if row["phase"] else ""
        self._write(
            f"{number}{phase}: {row['completed']} completed, {row['dropped']} dropped, "
            f"{row['late']} late, loss {_loss(row)}, "
            f"{self._time_is} {format_duration(row['end_s'])}, "
            f"wall {format_duration(self._shown_s - self._started_s)}{_ending(row, ', ')}"
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


class TerminalProgress(RunObserver):
    """A progress bar that redraws itself; evaluations stay above it as lines.

    Parameters
    ----------
    console : of the terminal.
    time_is : what the time of a run is called: ``simulated``, or ``real``.

    Use it as a context manager: leaving it gives the terminal back, whatever happened.
    """

    def __init__(self, console: Console, time_is: str = SIMULATED) -> None:
        self._time_is = time_is
        # Not above: a run whose progress is lines, or nothing, starts without it.
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

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

    def on_round(self, row: RoundRow) -> None:
        """Advance the bar and renew its figures."""
        if self._task is None:
            raise ValueError("a round was reported before the run's start")
        figures = (
            f"{row['completed']} completed · {row['dropped']} dropped · {row['late']} late · "
            f"loss {_loss(row)} · {self._time_is} {format_duration(row['end_s'])}{_ending(row, ' · ')}"
        )
        self._progress.update(self._task, completed=row["round"], figures=figures)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Print the values over all users above the bar."""
        text = f"after round {round_number}: {_evaluated(values)}"
        self._progress.print(text, markup=False, highlight=False)

    def on_end(self, status: str) -> None:
        """Leave the bar as it is and say how the run ended."""
        self._progress.stop()
        self._progress.console.print(status, markup=False, highlight=False)
