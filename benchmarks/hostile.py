"""Devices that send nonsense: what it does to rounds in the clear, buffered, robust, and under secure sums.

    python benchmarks/hostile.py [--rounds 5000] [--sessions 12] [--seed 1]

Every run is one of the product's own on the virtual clock, in which one to three of twelve devices are
hostile: what they send is changed in one field on its way to the coordinator, in every round that they are
invited to, in every kind of message that a device sends. A row of the table is a mode and a field: rounds
with a hostile device in them, what became of its frames by reason, rounds abandoned by reason, hostile
devices suspended (of those in the runs), and how far a sum was away, as a share of what was promised, at
most:

* without an update of a hostile device in it, a mean, a buffer and a robust rule give what they give of the
  honest updates: the difference, as a share of their largest element, of 1e-5;
* with one, whose numbers are all within their ranges, a mean is away by no more than those ranges add up to,
  or under a norm bound by the bound for each, and a robust rule within the honest updates;
* under secure sums no element of a mean is beyond the clip.

Then one to three of twelve devices, over real sockets, say hello and go on with session frames that have
nonsense in one field each.

The benchmark fails if a process or a run does not come to its end, a round has no ending with a name or is
abandoned without need, an honest device is suspended, a hostile one that can be named is not, or a sum is
further away.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import aiohttp
import msgpack
import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import Channel
from coordinator.engine.actor import Coordinator
from coordinator.engine.aggregation.held import aggregating
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.assembly import Assembly
from coordinator.engine.progress import RunObserver
from coordinator.engine.training import Training
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.run import runner
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled, run_scenario
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.conducting import RealTime
from coordinator.service.local_devices import LocalDevices
from coordinator.simulation.backend import SimulatedCohort
from edge.core.vocabulary import Reason
from edge.learning.accumulators import VALUE_MAX
from edge.learning.updates import Aggregate, ClientUpdate
from edge.wire.messages import (
    Abort,
    Accept,
    AdvertiseKeys,
    AnyMessage,
    ConsistencySignature,
    Decline,
    DecryptedSum,
    EncryptedInput,
    Failure,
    MaskedInput,
    Report,
    SealedShares,
    UnmaskShares,
)
from edge.wire.session_frames import (
    PROTOCOL,
    Ack,
    Goodbye,
    Hello,
    Note,
    Piece,
    Ping,
    Pong,
    SessionFrame,
    Welcome,
    pack,
    unpack,
)

DEVICES = 12
ROUNDS_OF_RUN = 8
STRIKES = 6
CLIP = 1.0
NORM_BOUND = 0.5
EXACT = 1e-5
"""Most that an order of summation may do, as a share of the largest element."""
OFFENCES = frozenset({Reason.GARBAGE, Reason.OUT_OF_RANGE, Reason.PROTOCOL})
"""A frame that is judged so has a sender that spoils the round."""
TEXT = f"""
format: 2
data: {{source: synthetic-ratings, users: {DEVICES}, items: 20, ratings_per_user: 8}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: fedrecon, factors: 2, learning_rate: 0.01, upload: UPLOAD, weighting: WEIGHTING}}
rounds:
  {{count: {ROUNDS_OF_RUN}, cohort: {DEVICES}, quorum: QUORUM, deadline: 120 s, selection: random PACING}}
evaluation: {{final: false}}
record: {{events: none}}
admission: {{strikes: {STRIKES}}}
"""
BUFFERED = ", pacing: {mode: buffered, concurrency: 12, staleness_weight: constant}"


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """How updates are put together.

    Attributes
    ----------
    promise : what a sum with a hostile update in it is held against.
    section : of the scenario.
    """

    promise: Literal["ranges", "norm", "between", "clip"]
    section: str = ""
    uniform: bool = False
    sparse: bool = False
    buffered: bool = False

    @property
    def clear(self) -> bool:
        """Whether the coordinator sees single updates."""
        return self.promise != "clip"

    @property
    def quorum(self) -> int:
        """Reports that a round needs."""
        return 9 if "krum" in self.section else 6

    def text(self, seed: int) -> str:
        """Return the scenario."""
        text = TEXT.replace("UPLOAD", "sparse" if self.sparse else "dense")
        text = text.replace("QUORUM", str(self.quorum))
        text = text.replace("WEIGHTING", "uniform" if self.uniform else "examples")
        text = text.replace(" PACING", BUFFERED if self.buffered else "")
        return f"seed: {seed}\n{text}{self.section}\n"


def _sum(mode: str, **how: bool) -> Mode:
    return Mode("clip", f"secure_aggregation: {{mode: {mode}, clip: {CLIP}}}", **how)


MODES = {
    "clear": Mode("ranges"),
    "clear, uniform": Mode("ranges", uniform=True),
    "clear, sparse": Mode("ranges", sparse=True),
    "norm bound": Mode("norm", f"aggregation: {{rule: mean, norm_bound: {NORM_BOUND}}}", uniform=True),
    "buffered": Mode("ranges", buffered=True),
    "buffered, sparse": Mode("ranges", sparse=True, buffered=True),
    "trimmed-mean": Mode("between", "aggregation: {rule: trimmed-mean, trim: 30%}"),
    "trimmed-mean, sparse": Mode("ranges", "aggregation: {rule: trimmed-mean, trim: 30%}", sparse=True),
    "median": Mode("between", "aggregation: {rule: median}"),
    "krum": Mode("between", "aggregation: {rule: krum, attackers: 25%}"),
    "multi-krum": Mode("between", "aggregation: {rule: multi-krum, attackers: 25%}", uniform=True),
    "secagg": _sum("secagg"),
    "secagg-plus": _sum("secagg-plus"),
    "secagg-plus, uniform": _sum("secagg-plus", uniform=True),
    "active": _sum("active"),
    "ckks": _sum("ckks"),
}
Change = Callable[[Any, np.random.Generator], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Nonsense:
    """What is done to a message; ``named``: whether its sender is known to have spoilt the round."""

    change: Change
    named: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A mode, a field, the kind of message that it is in, and what is done to it."""

    mode: str
    field: str
    kind: type[Any]
    nonsense: Nonsense


def _field(name: str, *values: object) -> Change:
    return lambda message, draw: message._replace(**{name: values[draw.integers(len(values))]})


def _arrays(change: Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[Any]]) -> Change:
    def changed(message: Any, draw: np.random.Generator) -> Any:
        name = sorted(message.arrays)[draw.integers(len(message.arrays))]
        return message._replace(arrays={**message.arrays, name: change(message.arrays[name].copy(), draw)})

    return changed


def _elements(*values: float, all_of_them: bool = False) -> Change:
    def changed(message: Any, draw: np.random.Generator) -> Any:
        name = max(message.arrays, key=lambda one: (message.arrays[one].dtype.kind == "f", one))
        array, value = message.arrays[name].copy(), values[draw.integers(len(values))]
        if all_of_them:
            array[...] = value
        else:
            array.flat[draw.integers(array.size)] = value
        return message._replace(arrays={**message.arrays, name: array})

    return changed


def _random_bytes(array: npt.NDArray[Any], draw: np.random.Generator) -> npt.NDArray[Any]:
    drawn = np.frombuffer(draw.bytes(array.nbytes), array.dtype)
    return drawn.reshape(array.shape)


def _tail(place: int, *values: int) -> Change:
    def moved(array: npt.NDArray[Any], draw: np.random.Generator) -> npt.NDArray[Any]:
        array[place] += np.array(values[draw.integers(len(values))]).astype(array.dtype)
        return array

    return _arrays(moved)


def _another(kind: type[Any], **fields: object) -> Change:
    return lambda message, _: kind(message.run_id, message.round_number, message.device, **fields)


ADDRESSED = {
    "round": Nonsense(_field("round_number", 0, 2**40, 2**64 - 1), named=False),
    "run": Nonsense(_field("run_id", "", "another run"), named=False),
    "device": Nonsense(_field("device", 0, 99, 2**64 - 1), named=False),
}
"""What every message has. A frame of another round is no offence, and one of another device is not heard."""
OTHER_KINDS = {
    "an acceptance in its place": Nonsense(_another(Accept), named=False),
    "a refusal for no reason in its place": Nonsense(_another(Decline, reason=2**63), named=False),
    "a failure for no reason in its place": Nonsense(_another(Failure, reason=2**64 - 1), named=False),
    "an abort in its place": Nonsense(_another(Abort, reason="x" * 300), named=False),
    "a report in its place": Nonsense(
        _another(Report, examples=2**64 - 1, weight=1e308, loss=-1.0, arrays={}), named=False
    ),
    "an input in its place": Nonsense(
        _another(MaskedInput, arrays={"x": np.zeros(3, np.uint32)}), named=False
    ),
}
SHAPES = {
    "arrays: none": Nonsense(lambda message, _: message._replace(arrays={})),
    "arrays: another name": Nonsense(lambda message, _: message._replace(arrays={"x": np.zeros(3)})),
    "arrays: cut off": Nonsense(_arrays(lambda array, _: array[:-1])),
    "arrays: another dtype": Nonsense(_arrays(lambda array, _: array.astype(np.complex64))),
    "arrays: another shape": Nonsense(_arrays(lambda array, _: array.reshape(1, *array.shape, 1))),
}
REPORTS = {
    "weight": Nonsense(
        _field("weight", -8.0, -7.999999, 1e308, -1e308, 5e-324, 1e3, 2**64 - 1, np.nan, np.inf)
    ),
    "examples": Nonsense(_field("examples", 0, 2**31, 2**32, 2**63, 2**64 - 1)),
    "loss": Nonsense(_field("loss", -1.7e308, 1.7e308, -1e-9, 2e12, np.nan, -np.inf)),
    "elements": Nonsense(_elements(1e10, -1e30, 3e38, np.nan, np.inf, -np.inf)),
    **SHAPES,
    "within: elements": Nonsense(
        _elements(VALUE_MAX, -VALUE_MAX, VALUE_MAX / 3, all_of_them=True), named=False
    ),
    "within: loss": Nonsense(_field("loss", 0.0, 1e12), named=False),
}
RANDOM = {**SHAPES, "arrays: random bytes": Nonsense(_arrays(_random_bytes))}
TAILS = {
    "weight in the tail": Nonsense(_tail(-2, -11, -8, -5, 1, 7, 2**31), named=False),
    "count in the tail": Nonsense(_tail(-1, 1, 2), named=False),
}
KEYS = {**SHAPES, "arrays: random bytes": Nonsense(_arrays(_random_bytes), named=False)}
"""Under a key whose secret nobody has masks do not cancel, which the sum shows and no share."""
SEALED = {**SHAPES, "arrays: random bytes": Nonsense(_arrays(_random_bytes), named=False)}
"""What does not open for a holder may have been spoilt by either end: few such shares are done without."""
RELEASED = {field: Nonsense(nonsense.change, named=False) for field, nonsense in RANDOM.items()}
"""Of shares that come once there are enough nobody looks into them."""
INPUTS = {**RANDOM, **TAILS, "arrays: random bytes": Nonsense(_arrays(_random_bytes), named=False)}
"""Of a masked input nobody can say whether it is random: who spoils the sum so has no name."""
KINDS: dict[str, list[tuple[type[Any], dict[str, Nonsense]]]] = {
    "secagg": [
        (AdvertiseKeys, KEYS),
        (SealedShares, SEALED),
        (MaskedInput, INPUTS),
        (UnmaskShares, RELEASED),
    ],
    "ckks": [(EncryptedInput, RANDOM), (DecryptedSum, RANDOM)],
}
KINDS["secagg-plus"] = KINDS["secagg"]
KINDS["active"] = [*KINDS["secagg"], (ConsistencySignature, RANDOM)]


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for mode, how in MODES.items():
        kinds = [(Report, REPORTS)] if how.clear else KINDS[mode.split(",")[0]]
        for kind, fields in [(Accept, {}), *kinds]:
            inputs = kind in (MaskedInput, EncryptedInput) or (kind is Report and how.buffered)
            for field, nonsense in {**ADDRESSED, **OTHER_KINDS, **fields}.items():
                # The simulator takes a device whose message counted for one that has sent its input.
                if not (inputs and field.startswith(("a refusal", "a failure", "an abort"))):
                    yield Case(mode, f"{kind.__name__}, {field}", kind, nonsense)


@dataclasses.dataclass
class Row:
    """What came of one mode and field."""

    rounds: int = 0
    judged: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    abandoned: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    hostile: int = 0
    suspended: int = 0
    worst: float = 0.0
    """Of what is promised, the share that came about."""
    broken: set[str] = dataclasses.field(default_factory=set)
    """Promises that were not kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    round_number: int
    update: ClientUpdate
    changed: bool


class Hostility:
    """Changes what hostile devices send, and looks at the sums that are applied."""

    def __init__(self, case: Case, draw: np.random.Generator, row: Row) -> None:
        self._case, self._draw, self._row = case, draw, row
        self._mode = MODES[case.mode]
        number = int(draw.integers(1, 4))
        self.devices = set(draw.choice(DEVICES, number, replace=False).tolist())
        if case.kind is DecryptedSum:  # the first are asked
            self.devices = set(range(number))
        self._taken: list[_Taken] = []
        self.sent: dict[int, set[int]] = {device: set() for device in self.devices}
        """Rounds in which each hostile device has sent nonsense, and those in which that was an offence."""
        self.offended: dict[int, set[int]] = {device: set() for device in self.devices}

    def received(
        self,
        judge: Callable[[Coordinator, Channel, AnyMessage], Reason],
        coordinator: Coordinator,
        channel: Channel,
        message: AnyMessage,
    ) -> Reason:
        """Judge a frame, changed if a hostile device sends it."""
        device, number = channel.device, message.round_number
        hostile = device in self.devices and isinstance(message, self._case.kind)
        honest = message
        if hostile:
            message = self._case.nonsense.change(message, self._draw)
            self.sent[device].add(number)
        mine: _Taken | None = None
        if isinstance(message, Report):
            update = ClientUpdate(message.arrays, message.weight, message.examples, message.loss)
            same = isinstance(honest, Report) and all(
                getattr(message, name) is getattr(honest, name) for name in ("arrays", "weight")
            )
            mine = _Taken(number, update, changed=not same)
            self._taken.append(mine)  # before it is judged: a buffer that it fills is emptied at once
        reason = judge(coordinator, channel, message)
        if mine is not None and reason is not Reason.NONE:
            self._taken = [one for one in self._taken if one is not mine]
            if not hostile and reason in OFFENCES:
                self._row.broken.add(f"an honest report was judged {reason.name}")
        if hostile:
            self._row.judged[reason.name.lower().replace("_", "-")] += 1
            if reason in OFFENCES:
                self.offended[device].add(number)
        return reason

    def looked_at(
        self,
        refuses: Callable[..., bool],
        training: Training,
        aggregate: Aggregate,
        number: int,
        ranges: ReportRanges,
    ) -> bool:
        """Measure a sum that may be applied."""
        taken = [one for one in self._taken if self._mode.buffered or one.round_number == number]
        self._taken = []
        refused = refuses(training, aggregate, number, ranges)
        if not refused:
            away = self._away(training, aggregate, taken)
            self._row.worst = max(self._row.worst, away)
            if not away <= 1.0:
                self._row.broken.add(f"a sum was {away:g} times as far away as promised")
        return refused

    def _away(self, training: Training, aggregate: Aggregate, taken: list[_Taken]) -> float:
        """Return how far a sum is from what was promised, as a share of how far it may be."""
        if not self._mode.clear:
            peak = max(float(np.abs(total).max()) for total in aggregate.sums.values())
            return peak / aggregate.weight / CLIP / (1.0 + 1e-6)
        honest = [one.update for one in taken if not one.changed]
        false = [one.update for one in taken if one.changed]
        expected = _summed(training, honest)
        peak = max(float(np.abs(array).max()) for update in honest for array in update.arrays.values())
        gaps = {name: np.abs(aggregate.sums[name] - total) for name, total in expected.sums.items()}
        if not false:
            return max(float(gap.max()) for gap in gaps.values()) / peak / EXACT
        if self._mode.promise == "ranges":
            return max(float(gap.max()) for gap in gaps.values()) / (len(false) * VALUE_MAX + EXACT * peak)
        if self._mode.promise == "norm":
            norm = float(np.sqrt(sum(float(np.square(gap).sum()) for gap in gaps.values())))
            return norm / (len(false) * NORM_BOUND + EXACT * peak)
        return max(self._beyond(training, name, aggregate, honest) for name in aggregate.sums)

    def _beyond(
        self, training: Training, name: str, aggregate: Aggregate, honest: list[ClientUpdate]
    ) -> float:
        """Return by how much the means of a robust rule are beyond honest updates, of which each weighs 1."""
        each = np.stack([update.arrays[name] / update.weight for update in honest]).astype(np.float64)
        mean = aggregate.sums[name] / aggregate.weight
        gap = np.maximum(mean - each.max(axis=0), each.min(axis=0) - mean).max()
        return float(gap) / float(np.abs(each).max()) / EXACT


def _summed(training: Training, updates: list[ClientUpdate]) -> Aggregate:
    """Return what the product makes of some updates alone."""
    accumulator = aggregating(training._workload.algorithm.accumulator(training.state), training._scenario)
    for client, update in enumerate(updates):
        accumulator.add(update, client)
    return accumulator.result()


def run(case: Case, seed: int, row: Row, folder: Path) -> None:
    """Run one scenario with hostile devices, and add what came of it to ``row``."""
    file = folder / "run.yaml"
    file.write_text(MODES[case.mode].text(seed))
    hostility = Hostility(case, np.random.default_rng(seed), row)
    judge, refuses = Coordinator.frame_received, Training._refuses
    with (
        # The frames of a wave do not come one by one.
        mock.patch.object(SimulatedCohort, "foreseeable", False),
        mock.patch.object(Coordinator, "frame_received", lambda *args: hostility.received(judge, *args)),
        mock.patch.object(Training, "_refuses", lambda *args: hostility.looked_at(refuses, *args)),
        # It takes longer than the rounds, and no device sends anything to it.
        mock.patch.object(runner, "write_report"),
    ):
        try:
            outcome = run_scenario(load(file), target=folder / "run", observer=RunObserver())
        except Exception as error:  # the finding: it is in the table, with the seed that shows it
            row.broken.add(f"seed {seed}: {type(error).__name__}: {error}")
            row.rounds += len(set().union(*hostility.sent.values()))
            return
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    row.rounds += len(set().union(*hostility.sent.values()))
    row.hostile += len(hostility.devices)
    _look_at_rounds(case, open_run(outcome.directory), hostility.devices, row)
    _look_at_suspensions(case, hostility, set(open_run(outcome.directory).manifest["suspended_devices"]), row)


def _look_at_rounds(case: Case, tables: RunTables, hostile: set[int], row: Row) -> None:
    status = tables.manifest["status"]
    # Where nothing is evaluated a run is judged by the mean of the losses that devices report.
    if status not in ("finished", "no-round-completed") and not (
        status == "diverged" and case.field == "Report, within: loss"
    ):
        row.broken.add(f"a run ended as {status}")
    rounds = tables.read("rounds").to_pylist()
    if [one["round"] for one in rounds] != list(range(1, len(rounds) + 1)):
        row.broken.add("a round has no ending")
    if len(rounds) < ROUNDS_OF_RUN:
        row.broken.add(f"a run ended after round {len(rounds)}: {tables.manifest['stopped_by']}")
    reports = collections.Counter(
        one["round"]
        for one in tables.read("device_rounds").to_pylist()
        if one["way"] is not None and one["device"] not in hostile
    )
    for ended in rounds:
        if ended["outcome"] == "abandoned":
            row.abandoned[ended["reason"]] += 1
            if ended["reason"] == "none":
                row.broken.add("a round was abandoned for no reason")
            if MODES[case.mode].clear and reports[ended["round"]] >= MODES[case.mode].quorum:
                row.broken.add("a round in the clear was abandoned")
        if (ended["secagg_sum_error"] or 0) > 0 and case.kind not in (
            MaskedInput,
            EncryptedInput,
            DecryptedSum,
        ):
            row.broken.add("a sum of honest inputs was not exact")


def _look_at_suspensions(case: Case, hostility: Hostility, suspended: set[int], row: Row) -> None:
    row.suspended += len(hostility.devices & suspended)
    if wrongly := suspended - hostility.devices:
        row.broken.add(f"suspended honest {sorted(wrongly)}")
    for device in hostility.devices - suspended:
        times = len((hostility.sent if case.nonsense.named else hostility.offended)[device])
        if times >= STRIKES:
            row.broken.add(f"device {device} spoilt {times} rounds and was not suspended")


def campaign(rounds: int, seed: int, chosen: list[Case]) -> dict[tuple[str, str], Row]:
    """Run the cases in turn until so many rounds have had a hostile device in them, each once at least.

    An interrupt ends it before, and what has been found is returned.
    """
    table: dict[tuple[str, str], Row] = {}
    with suppress(KeyboardInterrupt):
        _go_through(rounds, seed, chosen, table)
    return table


def _go_through(rounds: int, seed: int, chosen: list[Case], table: dict[tuple[str, str], Row]) -> None:
    done = number = 0
    while done < rounds or number < len(chosen):
        case = chosen[number % len(chosen)]
        row = table.setdefault((case.mode, case.field), Row())
        before = row.rounds
        with tempfile.TemporaryDirectory() as folder:
            run(case, seed + number, row, Path(folder))
        done += row.rounds - before
        number += 1


# -- over real sockets -------------------------------------------------------------------------------------

SESSIONS = f"""
format: 2
data: {{source: synthetic-ratings, users: {DEVICES}, items: 20, ratings_per_user: 8}}
fleet: {{mix: global_android_2024, availability: always_on}}
connection: {{sockets: {{join_timeout: 2 s, resume_window: 0.5 s}}}}
learning: {{algorithm: fedrecon, factors: 2, learning_rate: 0.01, upload: dense}}
rounds: {{count: 3, cohort: {DEVICES}, quorum: 3, deadline: 2 s, interval: 0.2 s, selection: random}}
secure_aggregation: {{MODE}}
evaluation: {{final: false}}
"""
HELLOS: dict[str, tuple[object, ...]] = {
    "protocol": (0, 2, 2**62, -1, "1", None),
    "device": (DEVICES, 2**62, -1, 0, "0", None, 1.5),
    "token": ("x", "x" * 600, 7, None, "\ud800"),
    "session": ("x", "0" * 512, 7, None),
    "scenario": ("0" * 64, "x", 7, None),
    "received": (1, 2**62, -1, "0", None),
}
FRAMES: dict[str, tuple[SessionFrame, tuple[object, ...]]] = {
    "Piece.sequence": (Piece(1, 0, b"x"), (0, 2, 2**62, -1, None)),
    "Piece.left": (Piece(1, 0, b"x"), (1, 2**40, 2**62, -1, None)),
    "Piece.data": (Piece(1, 0, b"x"), (b"", b"x", b"\xc1" * 60_000, "text", None)),
    "Piece.at_s": (Piece(1, 0, b"x", 1.0), (-1.0, 1e300, float("nan"), "now")),
    "Note.stage": (Note(1, 2, -1.0), (99, 2**62, -1, None)),
    "Note.seconds": (Note(1, 2, -1.0), (1e300, float("inf"), float("nan"), -5.0, None)),
    "Note.at_s": (Note(1, 2, 1.0, 1.0), (-1.0, 1e300, float("nan"))),
    "Ack.received": (Ack(0), (1, 2**62, -1, None)),
    "Ack.at_s": (Ack(0, 1.0), (-1.0, 1e300, float("nan"))),
    "Ping.number": (Ping(1), (2**62, -1, None, "x")),
    "Pong.number": (Pong(1), (2**62, -1, None, "x")),
    "Goodbye.reason": (Goodbye("x"), ("x" * 600, 7, None)),
    "Hello again": (Hello(PROTOCOL, 0, "", "", "", 0), ("",)),
    "Welcome": (Welcome("x", 0, 1.0, 1.0, 1.0, 1, "x", "x", "x"), ("x",)),
}


def _bytes_of(frame: SessionFrame, name: str, value: object) -> bytes:
    """Return a session frame with anything in a field, which ours is never packed with."""
    code = msgpack.unpackb(pack(frame))[0]
    fields = [value if field == name else getattr(frame, field) for field in frame._fields]
    if fields[-1] is None and name != frame._fields[-1]:
        fields.pop()  # the one that may be left out
    packed = msgpack.packb((code, *fields), use_bin_type=True, unicode_errors="surrogatepass")
    assert isinstance(packed, bytes)
    return packed


async def _speak(http: aiohttp.ClientSession, url: str, device: int, chance: np.random.Generator) -> str:
    """Join with nonsense, or join and go on with it; return what was wrong once the service has hung up."""
    names = [*(f"Hello.{name}" for name in HELLOS), *FRAMES]
    what = names[chance.integers(len(names))]
    greeting, _, name = what.partition(".")
    hello = Hello(PROTOCOL, device, "", "", "", 0)
    async with http.ws_connect(url + "/v1/join", compress=0, max_msg_size=2**21) as socket:
        if greeting == "Hello" and name:
            values = HELLOS[name]
            await socket.send_bytes(_bytes_of(hello, name, values[chance.integers(len(values))]))
        else:
            await socket.send_bytes(pack(hello))
            answer = await socket.receive()
            if answer.type is not aiohttp.WSMsgType.BINARY or not isinstance(unpack(answer.data), Welcome):
                return f"{what}: not welcome"
            frame, values = FRAMES[what]
            for _ in range(4):
                value = values[chance.integers(len(values))]
                await socket.send_bytes(_bytes_of(frame, name or frame._fields[0], value))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while not (await socket.receive()).type & aiohttp.WSMsgType.CLOSE:
                    pass
    return what


async def _speak_on(
    url: str, device: int, chance: np.random.Generator, said: collections.Counter[str]
) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            with suppress(
                aiohttp.ClientError, OSError
            ):  # the service hangs up, or lets nobody in for a while
                said[await _speak(http, url, device, chance)] += 1
            await asyncio.sleep(0.02)


def session(seed: int, said: collections.Counter[str], folder: Path) -> Row:
    """Run one scenario over sockets with hostile devices among the others."""
    chance = np.random.default_rng(seed)
    hostile = set(chance.choice(DEVICES, int(chance.integers(1, 4)), replace=False).tolist())
    honest = sorted(set(range(DEVICES)) - hostile)

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        devices = LocalDevices(url, honest, shaped=False, known=(loaded, assembly))
        spoken = [
            asyncio.create_task(_speak_on(url, device, np.random.default_rng([seed, device]), said))
            for device in sorted(hostile)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(devices.run())
                yield
        finally:
            for one in spoken:
                one.cancel()

    file = folder / "run.yaml"
    mode = "mode: off" if seed % 2 else "mode: secagg-plus, clip: 1"
    file.write_text(f"seed: {seed}\n" + SESSIONS.replace("MODE", mode))
    loaded = load(file)
    conductor = RealTime(wait_for=len(honest), company=company)
    outcome = run_assembled(
        loaded, assemble(loaded), target=folder / "run", observer=RunObserver(), conductor=conductor
    )
    row, tables = Row(hostile=len(hostile)), open_run(outcome.directory)
    rounds = tables.read("rounds").to_pylist()
    row.rounds = len(rounds)
    if outcome.status != "finished" or [one["outcome"] for one in rounds] != ["completed"] * 3:
        row.broken.add(f"{outcome.status}, rounds {[one['reason'] for one in rounds]}")
    for one in tables.read("device_rounds").to_pylist():
        if one["device"] in hostile:
            row.judged[f"{one['outcome']}: {one['reason']}"] += 1
            if one["outcome"] == "completed":
                row.broken.add("a hostile device completed a round")
        elif one["outcome"] != "completed":
            row.broken.add(f"an honest device was {one['outcome']}: {one['reason']}")
    suspended = set(tables.manifest["suspended_devices"])
    row.suspended = len(suspended & hostile)
    if suspended - hostile:
        row.broken.add(f"suspended honest {sorted(suspended - hostile)}")
    return row


def sessions(number: int, seed: int) -> tuple[list[Row], collections.Counter[str]]:
    """Run so many scenarios over sockets; return a row for each, and how often what was said."""
    said: collections.Counter[str] = collections.Counter()
    rows = []
    for index in range(number):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(session(seed + index, said, Path(folder)))
    return rows, said


def broken(table: dict[tuple[str, str], Row]) -> list[str]:
    """Return the promises that were not kept."""
    found = []
    for (mode, field), row in table.items():
        found += [f"{mode}, {field}: {promise}" for promise in sorted(row.broken)]
        if not row.rounds:
            found.append(f"{mode}, {field}: nothing was sent")
    return found


def _counts(counter: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


def main() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5000, help="rounds with a hostile device in them")
    parser.add_argument("--sessions", type=int, default=12, help="runs over sockets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="modes and fields that this is in, as 'mode: field'")
    args = parser.parse_args()
    chosen = [case for case in cases() if args.only in f"{case.mode}: {case.field}"]
    np.random.default_rng(args.seed).shuffle(chosen)  # type: ignore[arg-type]
    table = campaign(args.rounds, args.seed, chosen)
    print("| mode | field | rounds | its frames | abandoned | suspended | worst |\n" + "| --- " * 7 + "|")
    for (mode, field), row in sorted(table.items()):
        print(
            f"| {mode} | {field} | {row.rounds} | {_counts(row.judged)} | {_counts(row.abandoned)} "
            f"| {row.suspended} of {row.hostile} | {row.worst:.3g} |"
        )
    print(f"{sum(row.rounds for row in table.values())} rounds with hostile devices")
    over_sockets, said = sessions(args.sessions, args.seed)
    print(
        f"{len(over_sockets)} runs over sockets, {sum(row.rounds for row in over_sockets)} rounds; "
        f"{_counts(said)}"
    )
    failures = broken(table) + [
        f"over sockets, run {index}: {promise}"
        for index, row in enumerate(over_sockets)
        for promise in sorted(row.broken)
    ]
    print("\n".join(failures) or "every promise was kept")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
