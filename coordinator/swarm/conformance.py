"""The rules that every plug-in keeps, built in or not, as checks of one."""

from __future__ import annotations

import copy
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from coordinator.engine.assembly import Assembly
from coordinator.engine.progress import RunObserver
from coordinator.engine.selection.base import Knowledge, Selector, make_selector
from coordinator.engine.selection.experience import Experience
from coordinator.engine.workload import RatingWorkload
from coordinator.results.tables.reader import read_manifest
from coordinator.results.tables.schemas import deterministic_fields
from coordinator.run.assembling import assemble
from coordinator.run.feeding import feeding
from coordinator.run.runner import run_scenario
from coordinator.scenario.data_section import Reader
from coordinator.scenario.faults_section import KINDS as FAULT_KINDS
from coordinator.scenario.faults_section import STAGES_OF_MODE, fault_section
from coordinator.scenario.load import load_text
from coordinator.scenario.model import random_settings
from coordinator.scenario.ratings import read_file
from coordinator.scenario.registered_sections import SECTIONS, method_name
from coordinator.simulation.faults.base import FaultKind, Setting, Strike
from coordinator.swarm.generator import Document, document_of, text_of
from coordinator.swarm.storms import STORM, Stormy, fault_of
from coordinator.swarm.trial import Trial, run_trial
from coordinator.swarm.verdict import judge_text
from edge.core.errors import DataError
from edge.core.plugins import ALGORITHMS, FAULTS, READERS, SELECTORS, SINKS, Entry, get
from edge.core.rng import Draws, stream
from edge.device.round_faults import RoundFaults
from edge.device.simulated import CohortPlan
from edge.learning.base import Recommender
from edge.learning.promotion import PromotedItem
from edge.learning.registry import METHODS, create
from edge.learning.updates import Accumulator, ClientUpdate, UpdateBatch

_TRIES: Final = 3
"""Random settings that each plug-in is tried with."""
_AFTER_THE_RUN: Final = "1000 d"
_DEVICES: Final = 12
_AIMED_AT: Final = (0, 1, 2, 3, 4)
_STORM_S: Final = 60.0
_ROUNDS: Final = 6
_OTHER_BATCH: Final = 3
_DAMAGES: Final = 40

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """Whether a plug-in keeps a rule; ``problem`` is None if it does."""

    rule: str
    problem: str | None


def conform(entry: Entry) -> Iterator[RuleFinding]:
    """Yield a finding for every rule of the kind of plug-in that ``entry`` is."""
    rules: dict[str, Callable[[str], Iterator[tuple[str, Iterator[str]]]]] = {
        ALGORITHMS: _rules_of_algorithm,
        FAULTS: _rules_of_fault,
        SELECTORS: _rules_of_selector,
        READERS: _rules_of_reader,
        SINKS: _rules_of_sink,
    }
    rule = "random settings can be drawn, and run"
    try:
        for rule, problems in rules[entry.kind](entry.name):
            yield RuleFinding(rule, _first(problems))
    except Exception as error:
        yield RuleFinding(rule, _described(error))


def _first(problems: Iterator[str]) -> str | None:
    try:
        return next(problems, None)
    except Exception as error:
        return _described(error)


def _described(error: Exception) -> str:
    """Return what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = ", ".join(f"{frame.filename}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {error} ({where})"


def _base() -> Document:
    return {
        "format": 2,
        "data": {"source": "synthetic-ratings", "users": _DEVICES, "items": 15, "ratings_per_user": 6},
        "fleet": {"mix": "global_android_2024", "availability": "always_on"},
        "learning": {"algorithm": "fedrecon", "factors": 2, "learning_rate": 0.1},
        "rounds": {"cohort": 8, "deadline": "60 s", "interval": "30 s"},
        "phases": [{"name": STORM, "rounds": 2}, {"name": "quiet", "rounds": 1}],
        "evaluation": {"every": 1000, "final": "false"},
    }


def _trial(made: Document, batch: int | None = None) -> Trial:
    """Run a scenario in memory; raise what the run raised."""
    trial = run_trial(text_of(made), "conformance", batch=batch)
    if trial.error is not None:
        raise trial.error
    return trial


def _broken(made: Document) -> Iterator[str]:
    """Yield what does not hold of a run, and whether it is another one when it is repeated."""
    for violation in judge_text(text_of(made)).violations:
        yield f"{violation.invariant}: {violation.message}; the scenario was:\n{text_of(made)}"


# -- faults ----------------------------------------------------------------------------------------------


def _rules_of_fault(key: str) -> Iterator[tuple[str, Iterator[str]]]:
    storm = Stormy(STAGES_OF_MODE["off"], _STORM_S, _DEVICES, 1, ("any",), ("any",))
    made = []
    for number in range(_TRIES):
        one = fault_of(Draws(1, "conformance", key, number), "it", key, storm)
        if "on" in one:
            one["on"] = {"devices": list(_AIMED_AT)}
        made.append(one)
    yield "runs are sound, and the same when repeated", _sound_faults(made)
    yield "nothing changes while it is inactive", _inactive(key, made)
    yield "only those are struck that it is aimed at", _aimed(key, made)
    yield "nothing is touched but what it declares", _declared(key, made)


def _sound_faults(made: list[Document]) -> Iterator[str]:
    for one in made:
        yield from _broken(_base() | {"faults": [one]})


def _inactive(key: str, made: list[Document]) -> Iterator[str]:
    # Where the coordinator may crash, invitations are logged as they arrive, not as they leave, and the order
    # of events is another; where an item is promoted, its exposure is measured besides.
    whole = not (FAULT_KINDS[key].crashes or FAULT_KINDS[key].of_items)
    calm = _result(_trial(_base()), whole=whole)
    for one in made:
        later = {name: value for name, value in one.items() if name in ("name", "on", key)}
        later |= {"at": _AFTER_THE_RUN, "for": "1 s"}
        found = _trial(_base() | {"faults": [later]})
        if _result(found, whole=whole) != calm:
            yield f"a run that ends before it begins is another run: {later}"


def _result(trial: Trial, *, whole: bool) -> Any:
    """Return the digest of the ``whole`` run; or what became of the devices, and the model."""
    if whole:
        return trial.digest()
    columns = [field.name for field in deterministic_fields("device_rounds")]
    rows = trial.tables.read("device_rounds", columns).to_pylist()
    return repr(rows), {name: array.tobytes() for name, array in trial.last.items()}


def _aimed(key: str, made: list[Document]) -> Iterator[str]:
    if not FAULT_KINDS[key].of_devices:
        return
    calm = _others(_trial(_base()))
    for one in made:
        trial = _trial(_base() | {"faults": [one]})
        others = set(trial.tables.read("faults").column("device").to_pylist()) - set(_AIMED_AT)
        if others:
            yield f"devices {sorted(others)} were struck: {one}"
        found = _others(trial)
        changed = sorted(device for device, row in calm.items() if found.get(device) != row)
        if changed:
            yield f"the first round is another for devices {changed}, which it is not aimed at: {one}"


def _others(trial: Trial) -> dict[int, Any]:
    """Return what became, in the first round, of the devices that no fault is aimed at."""
    columns = [field.name for field in deterministic_fields("device_rounds")]
    rows = trial.tables.read("device_rounds", columns).to_pylist()
    first = [row for row in rows if row["round"] == 1 and row["device"] not in _AIMED_AT]
    return {row["device"]: repr(row) for row in first}


def _declared(key: str, made: list[Document]) -> Iterator[str]:
    assembly = assemble(load_text(text_of(_base()), "conformance"))
    target = PromotedItem(0, assembly.workload.algorithm.row_arrays)
    ids = np.arange(8, dtype=np.int64)
    slots = np.array([1, 4], dtype=np.int64)
    for number, one in enumerate(made):
        kind_class = FAULT_KINDS[key]
        struck = fault_section().model_validate(one)
        before, found = _plan(len(ids)), []
        for _ in range(2):
            plan, faults = _plan(len(ids)), RoundFaults()
            setting = Setting(1, assembly.fleet, ids, 1, _STORM_S / 2, plan, np.full(8, 1 << 20))
            kind = struck.kind
            assert isinstance(kind, FaultKind)
            kind.strike(Strike(struck, number, setting, slots, faults, target))
            found.append((plan, faults))
        (plan, faults), (again, repeated) = found
        if repr((plan, faults)) != repr((again, repeated)):
            yield f"strikes the same round in two ways: {one}"
        spared = [slot for slot in range(len(ids)) if slot not in slots or not kind_class.of_devices]
        for field in fields(CohortPlan):
            now, then = getattr(plan, field.name), getattr(before, field.name)
            if len(then) and any(now[slot] != then[slot] for slot in spared):
                yield f"changes {field.name!r} in the plan of a device that it does not strike: {one}"
        for field in fields(RoundFaults):
            noted = getattr(faults, field.name)
            if isinstance(noted, dict) and field.name != "struck" and set(noted) & set(spared):
                yield f"notes {field.name!r} for a device that it does not strike: {one}"
        parts = [field.name for field in fields(RoundFaults) if not field.name.startswith("_")]
        others = [part for part in parts if getattr(faults, part)]
        if kind_class.of_links and set(others) - {"links"}:
            yield f"is of links, and notes {others}: {one}"
        if faults.crashes and not kind_class.crashes:
            yield f"crashes the coordinator without 'crashes = True': {one}"
        if faults.poisons and not kind_class.of_updates:
            yield f"spoils updates without 'of_updates = True': {one}"


def _plan(n: int) -> CohortPlan:
    return CohortPlan(
        reachable=np.ones(n, np.bool_),
        failed_connects=np.zeros(n, np.int64),
        computes=np.ones(n, np.bool_),
        obstacle=np.zeros(n, np.int8),
        shortage=np.zeros(n, np.int8),
        compute_s=np.ones(n),
        drop_stage=np.full(n, -1, np.int8),
        drop_fraction=np.zeros(n),
        leaves_s=np.full(n, np.inf),
        bare=np.zeros(n, np.bool_),
        crypto=[],
        shielded=[],
    )


# -- selectors -------------------------------------------------------------------------------------------


def _rules_of_selector(name: str) -> Iterator[tuple[str, Iterator[str]]]:
    section = SECTIONS[name]
    made = [
        {**random_settings(section, Draws(1, "conformance", name, number)), "policy": name}
        for number in range(_TRIES)
    ]
    yield "runs are sound, and the same when repeated", _sound_selection(made)
    yield "draws are the same when repeated", _repeated_draws(made)
    yield "only free and available devices are drawn, each once, and no more than wanted", _fit_draws(made)
    yield "what it may look at is not changed", _unchanged_knowledge(made)


def _sound_selection(made: list[Document]) -> Iterator[str]:
    for one in made:
        base = _base()
        base["rounds"]["selection"] = one
        yield from _broken(base)


def _knowledge() -> Knowledge:
    base = _base()
    base["data"]["users"] = 60
    base["fleet"]["availability"] = "bernoulli_google"
    assembly = assemble(load_text(text_of(base), "conformance"))
    fleet, n = assembly.fleet, assembly.fleet.n
    generator = stream(1, "conformance", "experience")
    seen = Experience(n)
    for device in generator.permutation(n)[: n // 2].tolist():
        seen.invite(np.array([device]))
        seen.answered(device, 1, float(generator.uniform(1, 50)))
        seen.reported(device, 1, int(generator.integers(1, 30)), float(generator.uniform(0.1, 3)))
    fleet.busy[generator.permutation(n)[: n // 5]] = True
    return Knowledge(
        seed=1,
        fleet=fleet,
        experience=seen,
        examples=assembly.workload.held,
        predicted_s=lambda ids: np.full(len(ids), 1.0),
        deadline_s=lambda number, now_s: 60.0,
    )


def _draws(selector: Selector) -> Iterator[tuple[int, float, Ids]]:
    """Yield what is wanted, when, and what is drawn, in some rounds with retries."""
    for number in range(2, 2 + _ROUNDS):
        now_s = 3600.0 * number
        for attempt, wanted in enumerate((1, 7, 200)):
            drawn = selector.draw(wanted, number, attempt, now_s)
            yield wanted, now_s, drawn
            selector.invited(drawn)


def _selector(one: Document) -> tuple[Selector, Knowledge, Any]:
    knowledge, section = _knowledge(), SECTIONS[one["policy"]].model_validate(one)
    return make_selector(section, knowledge), knowledge, section


def _repeated_draws(made: list[Document]) -> Iterator[str]:
    for one in made:
        first, second = (_draws(_selector(one)[0]) for _ in range(2))
        for (wanted, now_s, drawn), (_, _, again) in zip(first, second, strict=True):
            if drawn.tolist() != again.tolist():
                yield f"{wanted} wanted at {now_s:g} s: {drawn.tolist()}, then {again.tolist()}: {one}"


def _fit_draws(made: list[Document]) -> Iterator[str]:
    for one in made:
        selector, knowledge, section = _selector(one)
        fleet = knowledge.fleet
        for wanted, now_s, drawn in _draws(selector):
            said = f"{wanted} wanted at {now_s:g} s: {drawn.tolist()}: {one}"
            if drawn.dtype != np.int64 or drawn.ndim != 1:
                yield f"draws {drawn.dtype} of {drawn.ndim} dimensions, not int64 of one: {one}"
            if len(drawn) > wanted or len(set(drawn.tolist())) < len(drawn):
                yield f"more than wanted, or one twice; {said}"
            if fleet.busy[drawn].any():
                yield f"a device that is not free; {said}"
            if section.draws_available and not fleet.availability.available(drawn, now_s).all():
                yield f"a device that is not available; {said}"
            free = np.flatnonzero(~fleet.busy)
            if not len(drawn) and fleet.availability.available(free, now_s).any():
                yield f"nothing, though devices are free and available; {said}"
        narrow = selector.draw(20, 99, 0, 3600.0, among=lambda ids: ids < 10)
        if (narrow >= 10).any():
            yield f"a device that the pool does not hold at the time: {narrow.tolist()}: {one}"


def _unchanged_knowledge(made: list[Document]) -> Iterator[str]:
    for one in made:
        selector, knowledge, _ = _selector(one)
        before = copy.deepcopy((knowledge.seen.memory(), knowledge.fleet.memory(), knowledge.fleet.busy))
        selector.draw(7, 2, 0, 3600.0)
        after = (knowledge.seen.memory(), knowledge.fleet.memory(), knowledge.fleet.busy)
        if repr(before) != repr(after):
            yield f"a draw changes what was learnt, or the fleet: {one}"


# -- methods ---------------------------------------------------------------------------------------------


def _rules_of_algorithm(name: str) -> Iterator[tuple[str, Iterator[str]]]:
    made = [document_of(1, number, name) for number in range(_TRIES)]
    yield "runs are sound, and the same when repeated", _sound_methods(made)
    # Without what else a scenario asks for: the updates as the method makes them.
    assemblies = [assemble(load_text(text_of(one), "conformance")) for one in made]
    yield "a client's update does not depend on the others in its batch", _of_rules(assemblies, _independent)
    yield "the same arguments give the same bits, and stay as they are", _of_rules(assemblies, _pure)
    yield "sums do not depend on batches, nor on the order of groups", _of_rules(assemblies, _grouped_sums)
    yield "uploads are as large as declared", _of_rules(assemblies, _declared_sizes)
    yield "updates and the model are finite", _of_rules(assemblies, _finite)
    yield (
        "negatives that devices draw are among the examples that are named",
        _of_rules(assemblies, _named_draws),
    )
    yield "who begins with the mean rating says so", _declared_mean(made)


def _sound_methods(made: list[Document]) -> Iterator[str]:
    for one in made:
        yield from _broken(one)


def _of_rules(
    assemblies: list[Assembly], rule: Callable[[Assembly, Any, Ids], Iterator[str]]
) -> Iterator[str]:
    for assembly in assemblies:
        state = assembly.workload.algorithm.initial_state(1)
        for problem in rule(assembly, state, np.arange(min(assembly.workload.n_clients, 6))):
            yield f"{problem} (settings {assembly.workload.algorithm})"


def _updates(assembly: Assembly, state: Any, clients: Ids) -> list[ClientUpdate]:
    return list(assembly.workload.training(state, 1)(clients)())


def _named(assembly: Assembly, state: Any, client: int, update: ClientUpdate) -> ClientUpdate:
    """Return an update as the coordinator adds it up: with whose row it is, where there are rows of users."""
    own = assembly.workload.own_parts(state)
    return update if own is None else update._replace(arrays=own.named(client, update.arrays))


def _bits(update: ClientUpdate) -> tuple[Any, ...]:
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in update.arrays.items()}
    local = None if update.local is None else update.local.tobytes()
    return arrays, repr(update.weight), update.examples, repr(update.loss), local


def _independent(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    together = _updates(assembly, state, clients)
    for client, update in zip(clients.tolist(), together, strict=True):
        (alone,) = _updates(assembly, state, np.array([client]))
        if _bits(alone) != _bits(update):
            yield f"client {client} alone has another update than in a batch of {len(clients)}"
    turned = _updates(assembly, state, clients[::-1].copy())
    if [_bits(one) for one in turned[::-1]] != [_bits(one) for one in together]:
        yield "in another order of clients the updates are others"


def _pure(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    algorithm = assembly.workload.algorithm
    before = {name: array.copy() for name, array in state.items()}
    again = algorithm.initial_state(1)
    if any(again[name].tobytes() != array.tobytes() for name, array in before.items()):
        yield "initial_state gives two models for one seed"
    first, second = (_updates(assembly, state, clients) for _ in range(2))
    if [_bits(one) for one in first] != [_bits(one) for one in second]:
        yield "client_update gives two updates for the same arguments"
    kept = [_bits(one) for one in first]
    total = algorithm.accumulator(state)
    for client, update in zip(clients.tolist(), first, strict=True):
        total.add(_named(assembly, state, client, update), client)
    aggregate, optimizer = total.result(), algorithm.initial_optimizer_state(state)
    if aggregate.weight > 0:
        models = [algorithm.server_update(state, optimizer, aggregate, 0)[0] for _ in range(2)]
        if any(array.tobytes() != models[1][name].tobytes() for name, array in models[0].items()):
            yield "server_update gives two models for the same arguments"
    if any(array.tobytes() != before[name].tobytes() for name, array in state.items()):
        yield "the model that it is given is written to"
    if kept != [_bits(one) for one in first]:
        yield "the updates that were added up are written to"


def _grouped_sums(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    workload = assembly.workload
    updates = workload.training(state, 1)(clients)()
    if not isinstance(updates, UpdateBatch):
        yield f"client_update returns {type(updates).__name__}, not an UpdateBatch"
        return
    named = [
        _named(assembly, state, client, one) for client, one in zip(clients.tolist(), updates, strict=True)
    ]

    def empty() -> Accumulator:
        total = workload.algorithm.accumulator(state)
        total.in_groups(2)
        return total

    def bits(total: Accumulator) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in total.result().sums.items()}

    found = []
    for order in (np.arange(len(clients)), np.argsort(clients % 2, kind="stable")):
        total = empty()
        for at in order.tolist():
            total.add(named[at], int(clients[at]))
        found.append(bits(total))
    if found[0] != found[1]:
        yield "the accumulator's sum depends on the order in which updates of different groups come"
    if workload.own_parts(state) is not None:
        return  # what names the rows of users is added to single reports
    for cut in (0, len(clients) // 2):
        total = empty()
        for places in (np.arange(cut), np.arange(cut, len(clients))):
            total.add_many(updates, places, clients[places])
        if bits(total) != found[0]:
            yield f"the accumulator's add_many of {len(clients) - cut} gives another sum than add"


def _declared_sizes(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    workload = assembly.workload
    specs = workload.algorithm.upload_spec(workload.examples(clients))
    exact = not getattr(workload, "grouped", False)
    for at, update in enumerate(_updates(assembly, state, clients)):
        names = [spec.name for spec in specs]
        if sorted(names) != sorted(update.arrays):
            yield f"declares {sorted(names)}, and uploads {sorted(update.arrays)}"
            return
        for spec in specs:
            array, declared = update.arrays[spec.name], int(spec.nbytes()[at])
            right = array.nbytes == declared if exact else array.nbytes <= declared
            if array.dtype != spec.dtype or not right:
                yield (
                    f"{spec.name!r} of client {clients[at]}: {array.nbytes} bytes of {array.dtype}, declared "
                    f"are {declared} of {spec.dtype}"
                )


def _finite(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    algorithm = assembly.workload.algorithm
    total = algorithm.accumulator(state)
    for client, update in zip(clients.tolist(), _updates(assembly, state, clients), strict=True):
        numbers = [array for array in update.arrays.values() if array.dtype.kind == "f"]
        if not all(np.isfinite(array).all() for array in numbers) or not np.isfinite(update.loss):
            yield f"client {client} has an update, or a loss, that is no number"
            return
        total.add(_named(assembly, state, client, update), client)
    aggregate = total.result()
    if aggregate.weight > 0:
        after, _ = algorithm.server_update(state, algorithm.initial_optimizer_state(state), aggregate, 0)
        if not all(np.isfinite(array).all() for array in after.values() if array.dtype.kind == "f"):
            yield "the model after a round is not finite"


def _declared_mean(made: list[Document]) -> Iterator[str]:
    for one in made:
        loaded = load_text(text_of(one), "conformance")
        learning, workload = loaded.scenario.learning, assemble(loaded).workload
        name = method_name(learning)
        if not isinstance(workload, RatingWorkload) or METHODS[name].begins_with_mean(learning):
            continue
        seen = []
        for mean in (2.0, 3.0):
            problem = replace(workload.algorithm.problem, rating_mean=mean)
            workload.algorithm = cast(Recommender, create(learning, problem))
            state = workload.algorithm.initial_state(1)
            known = {**state, **workload.algorithm.fixed()}
            updates = workload.training(state, 1)(np.arange(min(workload.n_clients, 6)))()
            bits = {name: array.tobytes() for name, array in known.items()}
            seen.append((bits, [_bits(update) for update in updates]))
        if seen[0] != seen[1]:
            yield f"reads 'rating_mean', and 'begins_with_mean' says that it does not: {one}"


def _named_draws(assembly: Assembly, state: Any, clients: Ids) -> Iterator[str]:
    workload = assembly.workload
    if not isinstance(workload, RatingWorkload) or not workload.algorithm.samples_negatives:
        return
    users, examples = workload.training_examples(clients, 1)
    owners = np.repeat(np.arange(len(users)), np.diff(examples.indptr))
    ones, zeros = (np.bincount(owners[examples.ratings == y], minlength=len(users)) for y in (1, 0))
    held, problem = workload.split.train.counts[users], workload.algorithm.problem
    if not np.array_equal(ones, held):
        yield f"users hold {held.tolist()} positives, and training_examples has {ones.tolist()} ones"
    if ((zeros == 0) & (held > 0) & (problem.n_items - held - problem.kept_back > 0)).any():
        yield "devices draw negatives, and training_examples has no zeros"


# -- readers ---------------------------------------------------------------------------------------------


def _rules_of_reader(name: str) -> Iterator[tuple[str, Iterator[str]]]:
    reader = get(READERS, name)
    if not issubclass(reader, Reader):
        yield "a format of recfleet's own, with tests of its own", iter(())
        return
    with tempfile.TemporaryDirectory() as folder:
        section = reader.model_validate({"source": name, "path": "example"})
        example = section.example(Path(folder))
        yield "its example is read, the same when repeated", _read_twice(section, example)
        yield "a damaged file is refused, or read", _read_damaged(section, example)
        data = {"source": name, "path": str(example)}
        learning = {"algorithm": "fedrecon", "factors": 2}
        made = _base() | {"data": data, "learning": learning, "rounds": {"cohort": 2, "deadline": "60 s"}}
        yield "runs are sound, and the same when repeated", _broken(made)


def _read_twice(section: Reader, example: Path) -> Iterator[str]:
    first, again = (read_file(section, example).store for _ in range(2))
    if first.content_hash() != again.content_hash():
        yield f"{example.name} gives other ratings the second time"


def _read_damaged(section: Reader, example: Path) -> Iterator[str]:
    if not example.is_file():
        return
    content = example.read_bytes()
    draws = stream(1, "conformance", "damage")
    damaged = [b"", content[: len(content) // 2], content.replace(b" ", b"\xff", 3)]
    for _ in range(_DAMAGES):
        spoilt = bytearray(content)
        for place in draws.integers(0, len(spoilt), 3):
            spoilt[place] = draws.integers(0, 256)
        damaged.append(bytes(spoilt))
    for one in damaged:
        example.write_bytes(one)
        try:
            read_file(section, example)
        except DataError:
            pass  # it says what is wrong
        except Exception as error:
            yield f"{type(error).__name__} in place of a DataError: {error}; the file was {one[:200]!r}"
    example.write_bytes(content)


# -- sinks -----------------------------------------------------------------------------------------------


def _rules_of_sink(name: str) -> Iterator[tuple[str, Iterator[str]]]:
    yield "a run is the same with it, and it takes all of it", _given_a_run(name)


def _given_a_run(name: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_text(text_of(_base()), "conformance")
        digests = []
        for sinks in ((), (f"{name}={Path(folder) / 'sink'}",)):
            target = Path(folder) / f"run-{len(sinks)}"
            with feeding(sinks, target) as given:
                outcome = run_scenario(loaded, target=target, observer=RunObserver(), feeds=given.feeds)
            yield from given.end(outcome)
            digests.append(read_manifest(outcome.directory)["digest"])
        if digests[0] != digests[1]:
            yield "the run is another one with it"
