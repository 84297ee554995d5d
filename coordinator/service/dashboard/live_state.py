"""The present state of a run, for whoever watches it.

Without I/O: it receives what happens in the run, readers ask for all of it or for what has changed since a
version. The two may be in different threads. Its memory does not grow with the run, except by the
observations of thresholds that ask for percentiles, which are exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.engine.progress import RunObserver
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.threshold_watch import WatchedThresholds
from coordinator.results.verdicts import verdict_record
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.threshold_evaluation import ThresholdResult
from coordinator.service.dashboard.at_work import DevicesAtWork
from coordinator.service.dashboard.happenings import KEPT, Happenings
from coordinator.service.dashboard.session_figures import SessionFigures
from coordinator.service.dashboard.table_figures import KEPT_ROUNDS, TableFigures
from edge.core.vocabulary import Direction, Reason, RoundOutcome, label
from edge.wire.messages import AnyMessage

_ABANDONED: Final = label(RoundOutcome.ABANDONED)


class LiveState(RunObserver):
    """What a run has come to; also a :class:`~coordinator.run.conductor.RunFeed`.

    Parameters
    ----------
    service : whether what shows it closes once the run is over.

    Attributes
    ----------
    lock : held by whoever reads the attributes below from another thread.
    version : grows with every change.
    over : whether nothing will change any more.
    tables : figures of the rounds that are over. at_work : of those under way. sessions : of a service.
    """

    def __init__(self, *, service: bool = False) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self.over = False
        self.tables = TableFigures()
        self.at_work = DevicesAtWork()
        self.sessions = SessionFigures()
        self._log = Happenings()
        self._run: dict[str, Any] = {
            "name": "",
            "title": None,
            "clock": None,
            "seed": None,
            "rounds": None,
            "status": "preparing",
            "baseline": None,
            "reason": None,
            "ending": None,
            "unscored": False,
            "service": service,
        }
        self._thresholds = WatchedThresholds((), None)
        self._verdicts: Sequence[ThresholdResult] | None = None
        self._in_baseline = False
        self._sections: Mapping[str, Callable[[], Any]] = {
            "run": lambda: dict(self._run),
            "now": self.at_work.record,
            "totals": self.tables.totals,
            "evaluations": self.tables.evaluations,
            "thresholds": self._threshold_records,
            "sessions": self.sessions.record,
        }
        self._changed = dict.fromkeys(self._sections, 0)

    def _touch(self, *sections: str) -> None:
        self.version += 1
        for section in sections:
            self._changed[section] = self.version

    # -- read ------------------------------------------------------------------------------------------

    def changes(self, since: int) -> dict[str, Any]:
        """Return what has changed after the version ``since``, as a mapping of JSON types; all after -1.

        ``version`` is what to ask with the next time. Of ``rounds`` and ``log`` there is what is new, at most
        as much as is kept; every other section is there as a whole, or not at all.
        """
        with self.lock:
            found: dict[str, Any] = {
                "version": self.version,
                "kept": {"log": KEPT, "rounds": KEPT_ROUNDS},
                "log_total": self._log.total,
                "log": self._log.since(since),
                "rounds": self.tables.rounds_since(since),
            }
            for section, build in self._sections.items():
                if self._changed[section] > since:
                    found[section] = build()
        return found

    def _threshold_records(self) -> list[dict[str, Any]]:
        if self._verdicts is not None:
            return [_shown(verdict, final=True) for verdict in self._verdicts]
        return [_shown(watched.verdict(), final=False) for watched in self._thresholds.each]

    # -- as a feed of the run --------------------------------------------------------------------------

    def on_begin(
        self, loaded: LoadedScenario, clock: Literal["virtual", "real"], baseline: TableMetricSource | None
    ) -> None:
        """Handle the scenario that is run."""
        scenario = loaded.scenario
        with self.lock:
            self._thresholds = WatchedThresholds(scenario.thresholds, baseline)
            self.sessions.used = clock == "real"
            self._run |= {
                "name": loaded.name,
                "title": scenario.title,
                "clock": clock,
                "seed": scenario.seed,
                "rounds": scenario.round_count,
                "status": "running",
                "baseline": None,
            }
            self._touch("run", "thresholds", "sessions")

    def on_batch(self, table: str, batch: Any) -> None:
        """Take rows that have been written."""
        with self.lock:
            self._thresholds.take(table, batch)
            match table:
                case "events":
                    for row in self.tables.take_events(batch):
                        self._touch("totals")
                        self._log.add(
                            self.version, "suspension", row["reason"], round_number=row["round"],
                            device=row["device"], note="it is not invited any more",
                        )  # fmt: skip
                case "device_rounds":
                    self._take_device_rounds(batch)
                case "rounds":
                    self._touch("totals", "thresholds", "now")
                    for row in self.tables.take_rounds(self.version, batch):
                        if row["outcome"] == _ABANDONED:
                            self._log.add(
                                self.version, "round", row["reason"], round_number=row["round"],
                                note="abandoned: nothing was applied",
                            )  # fmt: skip
                case "evaluations":
                    self.tables.take_evaluations(batch)
                    self._touch("evaluations", "thresholds")

    def _take_device_rounds(self, batch: Any) -> None:
        self._touch("now")
        dropped, more = self.tables.take_device_rounds(batch)
        self._log.skip(more)
        for row in dropped:
            self._log.add(
                self.version, "drop", row["reason"], round_number=row["round"], device=row["device"],
                stage=row["stage"], note=f"{row['outcome']}, {row['class']}",
            )  # fmt: skip
        if batch.num_rows:
            self.at_work.written(batch.column("round")[0].as_py(), batch.column("device").to_pylist())

    def on_verdicts(
        self, verdicts: tuple[ThresholdResult, ...], reason: str | None, ending: str | None
    ) -> None:
        """Take the verdicts of a run that is over, why it ended early, and why nothing was learnt."""
        with self.lock:
            # Of a run that was interrupted there are none: what was observed stays.
            self._verdicts = verdicts or None
            self._run |= {"reason": reason, "ending": ending}
            self._touch("thresholds", "run")

    # -- as an observer of the run ---------------------------------------------------------------------

    def on_start(self, name: str, rounds: int | None) -> None:
        """Handle a start: that of the run, or before it that of its baseline."""
        with self.lock:
            self._in_baseline = self._run["clock"] is None
            if self._in_baseline:
                self._run |= {"name": name, "status": "baseline", "baseline": {"round": 0, "rounds": rounds}}
                self._touch("run")

    def on_round(self, row: RoundRow) -> None:
        """Show how far the baseline is; the rounds of the run come as rows."""
        with self.lock:
            if self._in_baseline:
                self._run["baseline"] = {**self._run["baseline"], "round": row["round"]}
                self._touch("run")

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Handle an evaluation that had nothing to score; values come as rows."""
        with self.lock:
            if not values and not self._in_baseline:
                self._run["unscored"] = True
                self._touch("run")

    def on_end(self, status: str) -> None:
        """Handle the end of the run, or of its baseline."""
        with self.lock:
            if self._in_baseline:
                self._in_baseline = False
                return
            self._end(status)

    def writing(self) -> None:
        """Respond when the devices have gone, and the results are being written."""
        with self.lock:
            self._run["status"] = "ending"
            self._touch("run")

    def closing(self) -> None:
        """Respond when nobody can watch any longer, and what is left is to write the results."""
        with self.lock:
            if not self.over:
                self._end("ending")

    def _end(self, status: str) -> None:
        self._run["status"] = status
        self.over = True
        self._touch("run", "now")

    # -- what passes between coordinator and devices ---------------------------------------------------

    def invited(self, round_number: int, devices: list[int], frame_bytes: int, time_s: float) -> None:
        """Handle devices that an invitation of ``frame_bytes`` goes to."""
        with self.lock:
            self.at_work.invited(round_number, devices, frame_bytes, time_s)
            self._touch("now")

    def frame(
        self,
        round_number: int,
        device: int,
        direction: Direction,
        message: AnyMessage,
        reason: Reason,
        frame_bytes: int,
        time_s: float,
    ) -> None:
        """Handle a frame: one that was sent down, or one that came up and what it was judged."""
        with self.lock:
            self.at_work.frame(round_number, device, direction, message, reason, frame_bytes, time_s)
            self._touch("now")

    def joined(self, device: int, *, again: bool) -> None:
        """Handle a new session, or a new connection of one that goes on."""
        with self.lock:
            self.sessions.joined(device, again=again)
            self._touch("sessions")
            if again:
                self._log.add(self.version, "resume", "came back with its session", device=device)

    def disconnected(self, device: int, why: str) -> None:
        """Handle a connection that broke."""
        with self.lock:
            self.sessions.disconnected(device)
            self._touch("sessions")
            self._log.add(self.version, "disconnect", why or "connection lost", device=device)

    def left(self, device: int, reason: Reason, why: str) -> None:
        """Handle a session that is over."""
        with self.lock:
            self.sessions.left(device, reason)
            self.at_work.gone(device)
            self._touch("sessions", "now")
            # Whoever says goodbye between rounds is no news, and one in a round is among the drops.
            if reason is not Reason.SESSION_ENDED:
                self._log.add(self.version, "leave", label(reason), device=device, note=why)

    def refused(self, device: int | None, remote: str, why: str) -> None:
        """Handle somebody who was not let in."""
        with self.lock:
            self.sessions.refuse(why)
            self._touch("sessions")
            self._log.add(self.version, "refusal", why, device=device, note=f"from {remote}")

    def handled(self, seconds: float) -> None:
        """Add the time that this host worked on a message from a device."""
        with self.lock:
            self.sessions.handling_s.observe(seconds)
            self._touch("sessions")


def _shown(verdict: ThresholdResult, *, final: bool) -> dict[str, Any]:
    """Return a verdict as the page shows it; ``held`` is None as long as nothing was observed."""
    record = verdict_record(verdict)
    unseen = verdict.observations == 0 and verdict.value is None
    return {
        "threshold": record["threshold"],
        "held": None if unseen and not final else verdict.held,
        "final": final,
        "observations": record["observations"],
        "reason": record["reason"],
        "measured": record["measured"],
        **record["shown"],
    }
