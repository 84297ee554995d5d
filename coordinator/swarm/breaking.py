"""What it takes to break a promise of somebody's scenario: a random search around it, then the least change.

Changes (:mod:`coordinator.swarm.changes`) are drawn, each candidate from a random stream of its own, until a
promise breaks in a run. What broke it is then made less: changes are left out, and the strength of each that
is left is bisected on its grid, until the next weaker strength holds (as :mod:`coordinator.swarm.minimise`
makes scenarios of the other swarm small). All of it is a function of the scenario and the seed, unless time
ends it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.engine.run_files import write_atomically
from coordinator.run.conductor import Verdicts
from coordinator.run.in_memory import Judged, judge_baseline, judge_in_memory
from coordinator.scenario.dump import yaml_lines
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, edited, load
from coordinator.scenario.merge import COMMAND_LINE
from coordinator.swarm.changes import Change, FurtherFault, Surroundings, in_words, laid_over, settings_of
from edge.core.rng import Draws


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """How far a search goes.

    Attributes
    ----------
    seed : of the search.
    scenarios : random candidates, at most; None: no limit.
    seconds : wall time, to find and to make less; None: no limit.
    keep_going : go on after a promise broke, with changes of other kinds.
    """

    seed: int
    scenarios: int | None
    seconds: float | None = None
    keep_going: bool = False


@dataclass(frozen=True, slots=True)
class Breaking:
    """What breaks a promise.

    Attributes
    ----------
    index : of the candidate that broke one first.
    changes : what is left of it.
    broken : the promises that are missed, as the run says.
    holding : the next weaker strength of each change, which holds, in words; None where there is none.
    least : whether all was tried to make it less; else time ended that.
    """

    index: int
    changes: tuple[Change, ...]
    broken: Verdicts
    holding: tuple[str | None, ...]
    least: bool


@dataclass(slots=True)
class Search:
    """What a search has come to.

    Attributes
    ----------
    missed : promises that the scenario misses as it is; then nothing is searched.
    candidates : random candidates that were run.
    runs : runs in all.
    found : what breaks a promise, in the order in which it was found.
    wall_s : how long it took.
    over : whether time ended it.
    interrupted : whether the user did.
    """

    missed: Verdicts = ()
    candidates: int = 0
    runs: int = 0
    found: list[Breaking] = field(default_factory=list)
    wall_s: float = 0.0
    over: bool = False
    interrupted: bool = False


class _OutOfTimeError(Exception):
    """The time of a search is over."""


@dataclass
class _Breaker:
    """A search; :meth:`run` does it."""

    loaded: LoadedScenario
    bounds: SearchBounds
    progress: Callable[[str], object]
    search: Search = field(default_factory=Search)
    _baselines: dict[str, Judged | None] = field(default_factory=dict)
    _start_s: float = 0.0

    def run(self) -> Search:
        """Run the scenario as it is, then with changes."""
        search, self._start_s = self.search, time.monotonic()
        try:
            as_it_is = self._judged(self.loaded, ())
            search.missed = tuple(one for one in as_it_is.verdicts if not one.held)
            if as_it_is.held:
                end_s = as_it_is.tables.read("rounds", ["end_s"])["end_s"]
                self._seek(Surroundings(self.loaded, float(max(end_s.to_pylist(), default=1.0))))
        except _OutOfTimeError:
            search.over = True
        except KeyboardInterrupt:
            search.interrupted = True
        search.wall_s = time.monotonic() - self._start_s
        return search

    def _seek(self, surroundings: Surroundings) -> None:
        most = self.bounds.scenarios
        known: set[str] = set()
        for index in itertools.count() if most is None else range(most):
            self._check_time()
            changes = surroundings.drawn(Draws(self.bounds.seed, "around", index))
            if known & {change.kind for change in changes}:
                continue
            broken = self._missed(changes)
            if broken is None:
                continue
            self.search.candidates += 1
            self.progress(f"{index}: {in_words(changes)}: {'a promise breaks' if broken else 'holds'}")
            if broken:
                self._make_less(Breaking(index, changes, broken, (None,) * len(changes), least=False))
                known |= {change.kind for change in self.search.found[-1].changes}
                if not self.bounds.keep_going:
                    return

    def _make_less(self, found: Breaking) -> None:
        """Leave out what is not needed, then weaken each of the rest; keep what was found at every step."""
        kept = self.search.found
        kept.append(found)
        at = 0
        while len(found.changes) > 1 and at < len(found.changes):
            fewer = found.changes[:at] + found.changes[at + 1 :]
            broken = self._try(fewer)
            at = 0 if broken else at + 1
            if broken:
                found = replace(found, changes=fewer, broken=broken, holding=(None,) * len(fewer))
                kept[-1] = found
        for place, change in enumerate(found.changes):
            low, high = -1, change.at
            while high - low > 1:
                middle = (low + high) // 2
                weaker = change.with_strength(middle)
                tried = (*found.changes[:place], weaker, *found.changes[place + 1 :])
                broken = self._try(tried)
                if broken:
                    high, found = middle, replace(found, changes=tried, broken=broken)
                else:
                    low, held = middle, weaker.strength()
                    holding = (*found.holding[:place], held, *found.holding[place + 1 :])
                    found = replace(found, holding=holding)
                kept[-1] = found
        kept[-1] = replace(found, least=True)

    def _try(self, changes: Sequence[Change]) -> Verdicts:
        self._check_time()
        missed = self._missed(changes) or ()
        self.progress(f"    {in_words(changes)}: {'breaks' if missed else 'holds'}")
        return missed

    def _check_time(self) -> None:
        limit_s = self.bounds.seconds
        if limit_s is not None and time.monotonic() - self._start_s >= limit_s:
            raise _OutOfTimeError

    def _missed(self, changes: Sequence[Change]) -> Verdicts | None:
        """Return the promises that are missed with some changes; None where they make no valid scenario."""
        try:
            loaded = edited(self.loaded, list(settings_of(laid_over(self.loaded, changes))))
            judged = self._judged(loaded, changes)
        except ScenarioError:
            return None
        return tuple(one for one in judged.verdicts if not one.held)

    def _judged(self, loaded: LoadedScenario, changes: Sequence[Change]) -> Judged:
        judged = judge_in_memory(loaded, self._baseline(loaded, changes))
        self.search.runs += 1
        return judged

    def _baseline(self, loaded: LoadedScenario, changes: Sequence[Change]) -> Judged | None:
        """Return the run without faults: one for each fleet and seed."""
        calm = in_words([change for change in changes if not isinstance(change, FurtherFault)])
        if calm not in self._baselines:
            self._baselines[calm] = judge_baseline(loaded)
        return self._baselines[calm]


def break_promises(loaded: LoadedScenario, bounds: SearchBounds, progress: Callable[[str], object]) -> Search:
    """Search for the least change around a scenario that breaks one of its promises.

    Parameters
    ----------
    loaded : the scenario.
    bounds : how far to go.
    progress : is told what was tried, and whether it held.
    """
    return _Breaker(loaded, bounds, progress).run()


def breaking_file(loaded: LoadedScenario, found: Breaking, seed: int, folder: Path) -> Path:
    """Write a scenario that breaks its promise, as one that extends the searched, and return where.

    Parameters
    ----------
    loaded : what was searched around, read from a file; settings of the command line are written, too.
    found : what breaks it.
    seed : of the search.
    folder : made if there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{loaded.name}-{seed}-{found.index}.yaml"
    parent = next(iter(loaded.files.values()))
    said = in_words(found.changes)
    settings = _given(loaded, parent)
    changed = laid_over(loaded, found.changes)
    both = settings.keys() & changed.keys() - {"faults", "seed"}
    document: dict[str, Any] = {
        "extends": os.path.relpath(parent, folder),
        **settings,
        "title": f"{loaded.scenario.title or loaded.name}: {said}",
        **changed,
        **{key: {**settings[key], **changed[key]} for key in sorted(both)},
    }
    head = [f"# {said}", *(f"# breaks {' '.join(str(one.threshold).split())}" for one in found.broken)]
    write_atomically(path, ("\n".join([*head, *yaml_lines(document)]) + "\n").encode())
    return path


def _given(loaded: LoadedScenario, parent: Path) -> dict[str, Any]:
    """Return what settings of the command line changed in a scenario; a file of data by its whole path."""
    given = _difference(load(parent, references=False).document.root, loaded.document.root)
    place = ("data", "path")
    if loaded.document.position(place).file == COMMAND_LINE and "path" in given.get("data", {}):
        given["data"]["path"] = os.path.abspath(given["data"]["path"])
    return given


def _difference(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to be laid over one document to make the other; None removes."""
    found: dict[str, Any] = {key: None for key in below if key not in above}
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            inner = _difference(under, value)
            if inner:
                found[key] = inner
        elif value != under:
            found[key] = value
    return found
