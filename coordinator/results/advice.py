"""Advice on a run: patterns known to cost time, bytes or accuracy, each with the one setting to change.

A pattern is a function of what a run has left (tables, summary) and of its scenario. Where it is seen, it is
told in figures, with a key and, where that follows from the figures, a value to try. Two rules keep out what
nobody needs to hear:

* a pattern that follows from another one is left out beside it: rounds that miss their quorum because nobody
  was available need no smaller quorum;
* what a scenario promises and keeps is as its author wants it: a pattern about metrics whose thresholds all
  held is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.run_files import SUMMARY
from coordinator.results.analysis.critical_path import DEADLINE
from coordinator.results.analysis.learning_curves import TEST
from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.tables.reader import JsonShape, RunTables, read_json
from coordinator.scenario.aggregation_section import MeanRule
from coordinator.scenario.metric_names import higher_is_better
from coordinator.scenario.rounds_section import Buffered
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.secure_section import STAGE_KEYS, Masking, NoSecureAggregation
from coordinator.scenario.threshold_evaluation import percentile
from device_profiles.units import format_duration, write_ratio
from edge.core.vocabulary import Outcome, Reason, RoundOutcome, label
from edge.secagg.graph import COMPLETE_UP_TO, complete_parameters

Floats = npt.NDArray[np.float64]

_FEWEST_ROUNDS: Final = 3
"""Fewer rounds show no pattern."""
_NEARLY_ALL: Final = 0.8
_MANY: Final = 0.25
"""Share of device rounds that is worth a sentence."""
_MOST_OVER_SELECTION: Final = 3.0
"""More invitations a report than this are not advised."""
_FAILURES: Final = tuple(
    label(one)
    for one in (Outcome.DROPPED, Outcome.UNREACHABLE, Outcome.DECLINED, Outcome.FAILED, Outcome.LATE)
)
_OF_LINKS: Final = (Reason.RETRIES_EXHAUSTED, Reason.CONNECTION_LOST, Reason.CONNECTION_RESET)


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes
    ----------
    pattern : its name, for programs.
    seen : what was seen, in figures.
    change : what to do about it.
    key : the path of the setting to change.
    value : what to try, as ``--set`` takes it; None where the figures do not tell.
    """

    pattern: str
    seen: str
    change: str
    key: str
    value: str | None = None

    def __str__(self) -> str:
        setting = self.key if self.value is None else f"--set '{self.key}={self.value}'"
        return f"{self.seen}: {self.change} ({setting})"


@dataclass(frozen=True)
class Evidence:
    """What advice is drawn from.

    Attributes
    ----------
    scenario : of the run.
    run : its tables.
    summary : from :func:`~coordinator.results.summary.summarise`.
    """

    scenario: ScenarioSettings
    run: RunTables
    summary: Mapping[str, Any]

    @cached_property
    def rounds(self) -> Rows:
        """The rounds that ended."""
        columns = ["round", "outcome", "reason", "start_s", "duration_s", "invited", "completed", *_FAILURES]
        return read_rows(self.run, "rounds", columns)

    @cached_property
    def in_clear(self) -> bool:
        """Whether every round is one of reports in the clear."""
        return not self.buffered and set(self.summary["secure_aggregation"].values()) <= {"off"}

    @property
    def buffered(self) -> bool:
        """Whether there are no rounds, but steps."""
        return isinstance(self.scenario.rounds.pacing, Buffered)

    @property
    def clients(self) -> int:
        """How many devices there are."""
        return int(self.run.manifest["data"]["clients"])

    @cached_property
    def invited(self) -> Floats:
        """Devices invited to each round, float64 [rounds]."""
        return self.rounds.numbers["invited"].astype(np.float64)

    @cached_property
    def failed(self) -> Floats:
        """Devices of each round that gave no report in time, float64 [rounds]."""
        found: Floats = np.sum([self.rounds.numbers[name] for name in _FAILURES], axis=0).astype(np.float64)
        return found

    @cached_property
    def failing(self) -> float:
        """Share of the invited that gave no report in time, in all but one of twenty rounds with any."""
        asked = self.invited > 0
        return percentile(self.failed[asked] / self.invited[asked], 95) if asked.any() else 0.0

    def abandoned(self, reason: Reason) -> int:
        """Return how many rounds were abandoned for a reason."""
        return int(self.summary["rounds"]["abandoned_reasons"].get(label(reason), 0))

    def ended(self, *, outcome: Outcome | None = None, reasons: Sequence[Reason] = ()) -> float:
        """Return the share of device rounds that ended so, for one of the reasons."""
        named = {label(reason) for reason in reasons}
        count = sum(
            row["count"]
            for row in self.summary["not_completed"]
            if (outcome is None or row["outcome"] == label(outcome)) and (not named or row["reason"] in named)
        )
        return float(count / max(1, self.summary["device_rounds"]))

    def arrivals(self) -> Iterator[Floats]:
        """Yield the sorted latencies of the applied reports of each completed round, float64 [n], seconds."""
        rows = read_rows(self.run, "device_rounds", ["round", "outcome", "latency_s"])
        rows = rows.where(rows.equal("outcome", label(Outcome.COMPLETED)))
        number, latency_s = rows.numbers["round"], rows.numbers["latency_s"]
        order = np.lexsort((latency_s, number))
        number, latency_s = number[order], latency_s[order]
        completed = self.rounds.equal("outcome", label(RoundOutcome.COMPLETED))
        for one in self.rounds.numbers["round"][completed]:
            low, high = np.searchsorted(number, [one, one + 1])
            yield latency_s[low:high]

    @cached_property
    def test_metric(self) -> Mapping[str, Any] | None:
        """The first metric of test ratings that was measured before and after; None without one."""
        for row in self.summary["accuracy"]:
            if row["split"] == TEST and row["last_round"] > 0:
                found: Mapping[str, Any] = row
                return found
        return None


def _over_selection_for(share: float, cohort: int) -> float:
    """Return how many to invite per report wanted where a share of them fails, a multiple of 5%."""
    wanted = cohort / max(1e-9, 1.0 - share)
    return math.ceil(round(20 * math.ceil(wanted) / cohort, 9)) / 20


def _rounded_up(seconds: float) -> str:
    """Return a duration as a scenario writes it, two digits, none shorter."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return f"{math.ceil(round(seconds / unit, 6)) * unit:.6g} s"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _all_or(count: int, whole: int, what: str) -> str:
    return f"all {whole} {what}" if count == whole else f"{count} of {whole} {what}"


def _asked_in_vain(evidence: Evidence) -> Advice | None:
    share = evidence.ended(outcome=Outcome.UNREACHABLE, reasons=[Reason.UNAVAILABLE])
    if share <= 0.5:
        return None
    invited = evidence.summary["device_rounds"]
    seen = f"{round(share * invited):,} of {invited:,} invitations found nobody"
    if not evidence.scenario.rounds.selection.draws_available:
        key, value = "rounds.selection", "availability-aware"
        return Advice("asked-in-vain", seen, "draw from the devices that are available", key, value)
    change = "only available devices are drawn, so look at what takes them away"
    return Advice(
        "asked-in-vain", seen, change, "faults" if evidence.scenario.faults else "fleet.availability"
    )


def _memory(evidence: Evidence) -> Advice | None:
    share = evidence.ended(outcome=Outcome.FAILED, reasons=[Reason.MEMORY])
    if share < _MANY:
        return None
    seen = f"{_percent(share)} of the device rounds failed because the task did not fit into memory"
    factors = getattr(evidence.scenario.learning, "factors", None)
    if isinstance(factors, int) and factors > 1:
        return Advice("memory", seen, "train a smaller model", "learning.factors", str(factors // 2))
    return Advice("memory", seen, "train a smaller model, or on devices with more", "fleet")


def _battery(evidence: Evidence) -> Advice | None:
    share = evidence.ended(reasons=[Reason.BATTERY])
    if share < _MANY or not evidence.in_clear:
        return None
    seen = f"{_percent(share)} of the device rounds were refused or broken off for an empty battery"
    return _invite_more(evidence, "battery", seen)


def _links(evidence: Evidence) -> Advice | None:
    share = evidence.ended(reasons=_OF_LINKS)
    retry = evidence.scenario.rounds.retry
    if share < _MANY or retry.attempts >= 10:
        return None
    times = "once" if retry.attempts == 1 else f"{retry.attempts} times"
    seen = f"{_percent(share)} of the device rounds ended in a connection that failed, tried {times}"
    value = str(2 * retry.attempts + 1)
    return Advice("connections", seen, "let devices try more often", "rounds.retry.attempts", value)


def _full_link(evidence: Evidence) -> Advice | None:
    seconds = float(evidence.rounds.numbers["duration_s"].sum())
    if evidence.buffered:
        seconds = evidence.summary["simulated_s"]
    if seconds == 0:  # of rounds that were all under way when their coordinator died
        return None
    link, sizes = evidence.scenario.coordinator, evidence.summary["bytes"]
    # What devices download leaves the coordinator: its way up.
    used = {"up_rate": (sizes["down"], link.up_rate), "down_rate": (sizes["up"], link.down_rate)}
    shares = {key: 8.0 * size / rate_bps / seconds for key, (size, rate_bps) in used.items()}
    key = max(shares, key=lambda name: shares[name])
    if shares[key] < 0.7:
        return None
    seen = f"the coordinator's own link was full for {_percent(min(1.0, shares[key]))} of the rounds' time"
    value = f"{4 * used[key][1] / 1e6:.6g} Mbit/s"
    return Advice("coordinator-link", seen, "give it a faster one", f"coordinator.{key}", value)


def _late(evidence: Evidence) -> Advice | None:
    share = evidence.ended(outcome=Outcome.LATE)
    if share < _MANY or not evidence.in_clear:
        return None
    rounds = evidence.scenario.rounds
    seen = (
        f"{_percent(share)} of the reports came after the deadline of {format_duration(rounds.deadline)}, "
        "and were not applied"
    )
    # Of those that were told to stop it is not known how long they would have taken.
    rows = read_rows(evidence.run, "device_rounds", ["outcome", "latency_s"])
    arrived_s = rows.numbers["latency_s"][rows.equal("outcome", label(Outcome.LATE))]
    known = np.count_nonzero(~np.isnan(arrived_s)) > 0.5 * len(arrived_s)
    needed_s = 1.2 * float(np.nanpercentile(arrived_s, 95)) if known else 2.0 * rounds.deadline
    return Advice("late-reports", seen, "wait longer", "rounds.deadline", _rounded_up(needed_s))


def _invite_more(evidence: Evidence, pattern: str, seen: str) -> Advice | None:
    """Return the advice to invite as many more as fail, or to want fewer; None where neither would help."""
    rounds = evidence.scenario.rounds
    over_select = _over_selection_for(evidence.failing, rounds.cohort)
    if over_select <= rounds.over_select:
        return None
    if over_select <= min(_MOST_OVER_SELECTION, evidence.clients / rounds.cohort):
        change = f"invite {write_ratio(over_select)} of those wanted, and keep the first"
        return Advice(pattern, seen, change, "rounds.over_select", write_ratio(over_select))
    cohort = math.floor(rounds.cohort * (1.0 - evidence.failing))
    if cohort < max(1, rounds.quorum_reports):
        return None
    return Advice(pattern, seen, "want fewer reports in a round", "rounds.cohort", str(cohort))


def _quorum(evidence: Evidence) -> Advice | None:
    missed, finished = evidence.abandoned(Reason.QUORUM), evidence.summary["rounds"]["finished"]
    if 2 * missed < finished or evidence.buffered:
        return None
    rounds = evidence.scenario.rounds
    reports = evidence.invited - evidence.failed
    seen = (
        f"{_all_or(missed, finished, 'rounds')} missed their quorum of {rounds.quorum_reports}: "
        f"{int(np.median(evidence.invited))} devices were invited, {int(np.median(reports))} reported"
    )
    least = int(percentile(reports, 5))
    over_select = _over_selection_for(evidence.failing, rounds.quorum_reports) * (
        rounds.quorum_reports / rounds.cohort
    )
    over_select = math.ceil(round(20 * over_select, 9)) / 20
    if rounds.over_select < over_select <= min(_MOST_OVER_SELECTION, evidence.clients / rounds.cohort):
        change = f"invite {write_ratio(over_select)} of those wanted"
        return Advice("quorum", seen, change, "rounds.over_select", write_ratio(over_select))
    value = str(least) if 1 <= least < rounds.quorum_reports else None
    return Advice("quorum", seen, "be content with fewer", "rounds.quorum", value)


def _too_few_shares(evidence: Evidence) -> Advice | None:
    missed, finished = evidence.abandoned(Reason.THRESHOLD), evidence.summary["rounds"]["finished"]
    if 2 * missed < finished:
        return None
    section = evidence.scenario.secure_aggregation
    seen = (
        f"{_all_or(missed, finished, 'rounds')} ended without a sum: of those who had shared keys, fewer "
        "were left than it takes to unmask one"
    )
    if not isinstance(section, Masking):
        return None
    change, key, value = "plan for as many dropouts as there are", "secure_aggregation.dropout", None
    n = int(np.median(evidence.invited))
    complete = section.mode == "secagg" or n <= COMPLETE_UP_TO
    least = complete_parameters(n, section.corrupt, section.dropout).t
    if section.threshold is not None:
        left = int(percentile(evidence.invited - evidence.failed, 5))
        change, key = "let fewer shares do", "secure_aggregation.threshold"
        value = str((least + left) // 2) if section.neighbours == n - 1 and left >= least else None
    elif complete:
        # Of a complete graph more than half of the shares are needed, however many drop out.
        change = (
            f"more than half have to stay, {least} of {n}; with fewer that may collude somewhat less would do"
        )
        key = "secure_aggregation.corrupt"
    else:
        # Beyond the largest share there is no threshold that is safe.
        most = math.floor(round(20 * (0.9 - section.corrupt) / 2, 9)) / 20
        share = min(most, math.ceil(round(20 * evidence.failing, 9)) / 20)
        value = write_ratio(share) if section.dropout < share else None
    return Advice("too-few-shares", seen, change, key, value)


def _deadlines(evidence: Evidence) -> Advice | None:
    rounds = evidence.scenario.rounds
    if not evidence.in_clear:
        return None
    timed = int(np.count_nonzero(evidence.rounds.numbers["duration_s"] >= rounds.deadline * (1 - 1e-9)))
    if timed < _NEARLY_ALL * len(evidence.rounds):
        return None
    seen = (
        f"{_all_or(timed, len(evidence.rounds), 'rounds')} waited until their deadline of "
        f"{format_duration(rounds.deadline)} for devices that do not answer any more"
    )
    return _invite_more(evidence, "deadline-rounds", seen)


def _stage_deadlines(evidence: Evidence) -> Advice | None:
    section = evidence.scenario.secure_aggregation
    if isinstance(section, NoSecureAggregation) or evidence.in_clear:
        return None
    waited: dict[str, float] = {}
    for row in evidence.summary["held_up"]["by_class_and_stage"]:
        if row["ended_by"] == DEADLINE:
            waited[row["stage"]] = waited.get(row["stage"], 0.0) + row["share"]
    stage = max(waited, key=lambda name: waited[name], default="")
    key = stage.replace("-", "_")
    if key not in STAGE_KEYS.values() or waited[stage] < 0.5:
        return None
    limit_s = float(getattr(section.stage_deadlines, key))
    needed_s = max(1.0, 3.0 * evidence.summary["stages"][stage]["seconds"]["p95"])
    if needed_s > 0.7 * limit_s:
        return None
    seen = (
        f"{_percent(waited[stage])} of the rounds' time was spent waiting in {stage}, up to "
        f"{format_duration(limit_s)}, for devices that do not answer any more"
    )
    change = "wait no longer than three times what 95% of the others need, or a second"
    key = f"secure_aggregation.stage_deadlines.{key}"
    return Advice("stage-deadlines", seen, change, key, _rounded_up(needed_s))


def _stragglers(evidence: Evidence) -> Advice | None:
    """Find rounds that wait for a few slow devices, none being in reserve."""
    rounds, wanted = evidence.scenario.rounds, 1.2
    few = rounds.cohort < 5 or wanted * rounds.cohort > evidence.clients
    if rounds.over_select > 1 or rounds.grace_s is not None or few or not evidence.in_clear:
        return None
    last, sooner = [], []
    for latency_s in evidence.arrivals():
        if len(latency_s) == rounds.cohort:
            last.append(latency_s[-1])
            sooner.append(latency_s[math.ceil(rounds.cohort / wanted) - 1])
    if len(last) < _NEARLY_ALL * len(evidence.rounds):
        return None
    last_s, sooner_s = float(np.median(last)), float(np.median(sooner))
    if sooner_s > 0.5 * last_s:
        return None
    seen = (
        f"rounds wait for a few slow devices: {format_duration(last_s)} until the last report, "
        f"{format_duration(sooner_s)} until five sixths were there"
    )
    change = f"invite {write_ratio(wanted)} of those wanted, and keep the first"
    return Advice("stragglers", seen, change, "rounds.over_select", write_ratio(wanted))


def _over_selection(evidence: Evidence) -> Advice | None:
    """Find more devices in reserve than dropouts and slow devices call for."""
    rounds = evidence.scenario.rounds
    if rounds.over_select < 1.25 or not evidence.in_clear:
        return None
    wasted = {name: row["wasted_bytes"] for name, row in evidence.summary["waste_by_outcome"].items()}
    surplus, moved = wasted.get(label(Outcome.SURPLUS), 0), evidence.summary["bytes"]
    share = surplus / max(1, moved["down"] + moved["up"])
    failures = sum(wasted.get(name, 0) for name in _FAILURES)
    # No less than half of the reserve: what fewer would do is not seen in this run.
    least = max(_over_selection_for(evidence.failing, rounds.cohort), 0.5 * (1.0 + rounds.over_select))
    less = math.ceil(round(20 * least, 9)) / 20
    if share < 0.15 or surplus <= 2 * failures or less >= rounds.over_select:
        return None
    # Those in reserve stop when the round is full: what is left out is taken to come as the last ones did.
    rank = math.ceil(rounds.cohort * less / rounds.over_select)
    slower = [
        latency_s[-1] / latency_s[rank - 1]
        for latency_s in evidence.arrivals()
        if len(latency_s) == rounds.cohort
    ]
    if len(slower) < _NEARLY_ALL * len(evidence.rounds) or np.median(slower) > 1.25:
        return None
    whole = max(1, moved["down"] + moved["up"])
    seen = (
        f"{_percent(share)} of all bytes went to devices in reserve that were not needed, "
        f"{_percent(failures / whole)} to devices that failed"
    )
    change = f"{write_ratio(less)} would have been enough, in nearly the same time"
    return Advice("over-selection", seen, change, "rounds.over_select", write_ratio(less))


def _stale(evidence: Evidence) -> Advice | None:
    pacing = evidence.scenario.rounds.pacing
    share = evidence.ended(reasons=[Reason.STALE])
    if not isinstance(pacing, Buffered) or share < 0.5 * _MANY:
        return None
    seen = (
        f"{_percent(share)} of the reports were refused, for more than {pacing.staleness_limit} steps had "
        "replaced their model"
    )
    change = f"let fewer than {pacing.concurrency} work at a time"
    value = str(max(evidence.scenario.rounds.cohort, pacing.concurrency // 2))
    if int(value) < pacing.concurrency:
        return Advice("stale-reports", seen, change, "rounds.pacing.concurrency", value)
    value = str(2 * pacing.staleness_limit + 2)
    return Advice("stale-reports", seen, "accept older ones", "rounds.pacing.staleness_limit", value)


def _clipped_norms(evidence: Evidence) -> Advice | None:
    privacy, clipped = evidence.scenario.privacy, evidence.summary["clipped"]["updates"]
    if privacy is None or clipped is None or clipped["mean"] < 0.95:
        return None
    seen = f"the bound on norms, {privacy.clip_norm:g}, clipped {_percent(clipped['mean'])} of the updates"
    change = "let more through; the noise grows with it"
    return Advice("clipped-norms", seen, change, "privacy.clip_norm", f"{2 * privacy.clip_norm:g}")


def _clipped_values(evidence: Evidence) -> Advice | None:
    section, clipped = evidence.scenario.secure_aggregation, evidence.summary["clipped"]["values"]
    if isinstance(section, NoSecureAggregation) or clipped is None or clipped["mean"] < 0.05:
        return None
    seen = f"the secure sum clipped {_percent(clipped['mean'])} of the values to ±{section.clip:g}"
    change = "give it more room"
    return Advice("clipped-values", seen, change, "secure_aggregation.clip", f"{10 * section.clip:g}")


def _idle(evidence: Evidence) -> Advice | None:
    if evidence.buffered:
        return None
    start_s, duration_s = evidence.rounds.numbers["start_s"], evidence.rounds.numbers["duration_s"]
    rounds = evidence.scenario.rounds
    pauses_s = np.diff(start_s) - duration_s[:-1] - rounds.interval
    whole_s = float(start_s[-1] + duration_s[-1] - start_s[0])
    waited_s = float(np.maximum(pauses_s, 0.0).sum())
    if whole_s == 0 or waited_s < 0.5 * whole_s:
        return None
    seen = (
        f"for {_percent(waited_s / whole_s)} of the time there was no round: fewer devices were available "
        f"than a quorum of {rounds.quorum_reports}"
    )
    value = str(max(1, rounds.quorum_reports // 2))
    return Advice("too-few-available", seen, "be content with fewer", "rounds.quorum", value)


def _learnt_nothing(evidence: Evidence) -> Advice | None:
    """Find a model that is no better than before: poisoned, drowned in noise, or trained at a wrong rate."""
    row, scenario = evidence.test_metric, evidence.scenario
    if row is None or evidence.summary["rounds"]["completed"] < _FEWEST_ROUNDS or not row["first"]:
        return None
    last = row["last"]
    change = math.nan if last is None else (last - row["first"]) / abs(row["first"])
    gained = change if higher_is_better(row["metric"]) else -change
    if gained > 0.002:
        return None
    ended = "no number" if last is None else f"{last:.4g}"
    seen = f"{row['metric']} is no better than before training: {row['first']:.4g} → {ended}"
    if any(fault.kind.of_updates for fault in scenario.faults) and isinstance(scenario.aggregation, MeanRule):
        if evidence.in_clear:
            fix = "take the median of the updates, some of which are poisoned"
            return Advice("poisoned-mean", seen, fix, "aggregation", "{rule: median}")
        return None
    if scenario.privacy is not None:
        multiplier = getattr(scenario.privacy, "noise_multiplier", None)
        value = f"{multiplier / 4:g}" if multiplier else None
        key = "privacy.noise_multiplier" if multiplier is not None else "privacy"
        return Advice("noise", seen, "add less noise, or train more devices in a round", key, value)
    rate = getattr(scenario.learning, "learning_rate", None)
    if not isinstance(rate, float):
        return None
    stands_still = abs(change) <= 0.002
    if evidence.summary["rounds"]["completed"] < 10 if stands_still else gained > -0.05:
        return None
    pattern = "small-steps" if stands_still else "large-steps"
    fix = "take larger steps" if stands_still else "take smaller steps"
    value = f"{10 * rate if stands_still else rate / 10:.6g}"
    return Advice(pattern, seen, fix, "learning.learning_rate", value)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, the metrics it is about, and the patterns beside which it is left out."""

    find: Callable[[Evidence], Advice | None]
    about: tuple[str, ...]
    follows: tuple[str, ...] = ()


_CAUSES: Final = ("asked-in-vain", "memory", "battery", "connections", "coordinator-link", "late-reports")

PATTERNS: Final = (
    Pattern(_asked_in_vain, ("device.completed",)),
    Pattern(_memory, ("device.completed",)),
    Pattern(_battery, ("device.completed", "round.completed")),
    Pattern(_links, ("device.completed", "device.dropped"), ("asked-in-vain",)),
    Pattern(_full_link, ("round.duration", "device.latency")),
    Pattern(_late, ("device.completed", "device.wasted_work"), ("coordinator-link",)),
    Pattern(_too_few_shares, ("round.completed",), _CAUSES),
    Pattern(_quorum, ("round.completed",), _CAUSES),
    Pattern(_deadlines, ("round.duration",), (*_CAUSES, "quorum")),
    Pattern(_stage_deadlines, ("round.duration",), (*_CAUSES, "quorum", "too-few-shares")),
    Pattern(_stragglers, ("round.duration", "device.latency"), _CAUSES),
    Pattern(_over_selection, ("device.wasted_work",), _CAUSES),
    Pattern(_stale, ("device.staleness", "device.completed", "device.wasted_work")),
    Pattern(_clipped_norms, ("privacy.clipped",)),
    Pattern(_clipped_values, ("round.clipped",)),
    Pattern(_idle, ("round.completed",)),
    Pattern(_learnt_nothing, ("model.",), ("clipped-norms", "clipped-values", "quorum")),
)
"""All patterns, causes before what follows from them."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # figures of a run may be huge
def advise(
    scenario: ScenarioSettings,
    run: RunTables,
    summary: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
) -> list[Advice]:
    """Return the advice on a run, causes first; none of a run of few rounds.

    Parameters
    ----------
    scenario, run, summary : as :class:`Evidence` has them.
    verdicts : records of its verdicts, from :func:`~coordinator.results.verdicts.verdict_records`.
    """
    if summary["rounds"]["finished"] < _FEWEST_ROUNDS:
        return []
    evidence = Evidence(scenario, run, summary)
    found: dict[str, Advice] = {}
    for pattern in PATTERNS:
        if _kept(pattern.about, verdicts) or found.keys() & set(pattern.follows):
            continue
        advice = pattern.find(evidence)
        if advice is not None:
            found[advice.pattern] = advice
    return list(found.values())


def _kept(metrics: tuple[str, ...], verdicts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether there are promises about some metrics, all of them kept."""
    about = [one["held"] for one in verdicts if one["metric"].startswith(metrics)]
    return bool(about) and all(about)


def advice_record(advice: Advice) -> dict[str, Any]:
    """Return advice as a mapping of JSON types; ``text`` is what people read."""
    return {**asdict(advice), "text": str(advice)}


class _Line(JsonShape):
    pattern: str
    seen: str
    change: str
    key: str
    value: str | None
    text: str


class _Summary(JsonShape):
    advice: list[_Line] | None = None  # those of an earlier version have none


def read_advice(directory: Path) -> list[dict[str, Any]]:
    """Return the records of advice in ``summary.json`` of a run directory; none of a run without that file.

    Raises
    ------
    RunFormatError : the file is damaged.
    """
    try:
        written = read_json(directory / SUMMARY, _Summary)
    except FileNotFoundError:
        return []
    return list(written.get("advice") or ())
