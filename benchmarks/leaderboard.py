"""The leaderboard of ``docs/leaderboard.md``: runs that can be gone on with, and the page made of them.

    python benchmarks/leaderboard.py run DATA                    MovieLens 100K, leave-one-out: every line
    python benchmarks/leaderboard.py run DATA --lines fedmf fcf  two of them
    python benchmarks/leaderboard.py run DATA --protocol ml-1m-temporal
                                                                 another protocol: its section joins the page
    python benchmarks/leaderboard.py page                        docs/leaderboard.md, of the run directories

DATA is a folder with ``ml-100k`` and ``ml-1m``, as grouplens.org has them. ``--runs`` says where runs are
kept (``runs/leaderboard``). What is there and has ended is not run again: the command may be interrupted,
and called again.

Every method has the same budget: three values of one rate (``leaderboard_lines.py``) at seed 1, each a run of
at most 100 rounds that ends after six evaluations in a row without a better NDCG@10 on validation ratings;
the test is not scored in them. The value with the best NDCG@10 on validation then runs with seeds 1 to 3, the
round chosen by the same figure, and the model of that round is scored on the test, once. Two more rounds are
run for the audit that reads rated items off single uploads (``audit.rated_items``). The centralised lines get
three values of one setting each, chosen by the same figure.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from leaderboard_lines import LINES, Line
from leaderboard_notes import renew
from leaderboard_page import page as page_of
from leaderboard_references import REFERENCES, measure_reference
from leaderboard_results import AUDIT, COSTS, DECIDES, SEEDS, best_validation, ended_run

import recfleet
from coordinator.engine.run_files import ENDED, write_atomically

RUNS: Final = Path("runs/leaderboard")
SEARCH_SEED: Final = 1
AUDITED: Final[Mapping[str, object]] = {
    "rounds.count": 2,
    "evaluation.every": 2,
    "evaluation.select": None,
    "evaluation.patience": None,
    "audit.rated_items": True,
}
"""Settings of a short run whose uploads are read by an audit, to be laid over those of a search."""


@dataclass(frozen=True)
class Protocol:
    """A dataset and its split; a round has about a fifth of 943 devices, or a tenth of 6,040."""

    title: str
    source: str
    folder: str
    split: str
    cohort: int

    def scenario(self, line: Line, value: float, data: Path, *, only_validation: bool) -> recfleet.Scenario:
        """Return the scenario of a line with the value that is tried."""
        held_out = {"validation": True} if self.split == "leave-one-out" else {"test": 0.1, "validation": 0.1}
        drawn: dict[str, Any] = {} if line.draws_itself else {"negatives": 4}
        evaluation = {"every": 5, "ranking": {"k": [10]}, "select": DECIDES, "patience": 6}
        return recfleet.Scenario.of(
            {
                "format": 2,
                "title": line.title,
                "data": {
                    "source": self.source,
                    "path": str(data / self.folder),
                    "split": {"kind": self.split, **held_out},
                    **drawn,
                },
                "fleet": {"mix": "global_android_2024", "availability": "always_on"},
                "learning": line.settings(value),
                "rounds": {
                    "count": 100, "cohort": self.cohort, "deadline": "1000 min", "selection": "random",
                },
                "record": {"events": "none"},
                "evaluation": evaluation | ({"on": "validation"} if only_validation else {}),
            },
            name=line.page,
        )  # fmt: skip


_100K: Final = ("movielens-100k", "ml-100k")
_1M: Final = ("movielens-1m", "ml-1m")
PROTOCOLS: Final = {
    "ml-100k-leave-one-out": Protocol("MovieLens 100K, leave-one-out", *_100K, "leave-one-out", 200),
    "ml-100k-temporal": Protocol("MovieLens 100K, temporal", *_100K, "temporal", 200),
    "ml-1m-leave-one-out": Protocol("MovieLens 1M, leave-one-out", *_1M, "leave-one-out", 600),
    "ml-1m-temporal": Protocol("MovieLens 1M, temporal", *_1M, "temporal", 600),
}


def run_once(scenario: recfleet.Scenario, seed: int, target: Path) -> recfleet.Run:
    """Return the run in ``target``; one that is not there or has not ended is run, its CPU time noted."""
    if (found := ended_run(target)) is not None:
        return found
    start_s = time.process_time()
    with np.errstate(all="ignore"):  # a rate that is too high is a bad choice, and no more
        done = recfleet.run(scenario, seed=seed, out=target)
    if done.status not in ENDED:
        raise SystemExit(f"{target}: {done.status}; call again to go on")
    note_cost(target, time.process_time() - start_s)
    return done


def note_cost(target: Path, cpu_s: float) -> None:
    """Write down the CPU seconds of what ``target`` holds, in the file of its protocol."""
    file = target.parent.parent / COSTS
    costs = json.loads(file.read_text()) if file.exists() else {}
    costs[f"{target.parent.name}/{target.name}"] = round(cpu_s, 1)
    write_atomically(file, json.dumps(costs, indent=1, sort_keys=True).encode())


def run_line(name: str, protocol: Protocol, data: Path, folder: Path) -> None:
    """Search, then run the seeds with what was chosen."""
    line = LINES[name]
    found = {}
    for value in line.tried:
        scenario = protocol.scenario(line, value, data, only_validation=True)
        found[value] = best_validation(run_once(scenario, SEARCH_SEED, folder / name / f"search-{value:g}"))
        print(f"{name}: {'/'.join(line.searched)} {value:g}: {found[value]:.4f} on validation", flush=True)
    chosen = max(found, key=lambda value: found[value])
    for seed in SEEDS:
        scenario = protocol.scenario(line, chosen, data, only_validation=False)
        run = run_once(scenario, seed, folder / name / f"seed-{seed}")
        selected = run.summary["selected"]
        print(f"{name}: {chosen:g}, seed {seed}: round {selected['round']}", flush=True)
    if line.is_audited:
        scenario = protocol.scenario(line, chosen, data, only_validation=True).edited(AUDITED)
        run_once(scenario, SEARCH_SEED, folder / name / AUDIT)


def run_reference(name: str, protocol: Protocol, data: Path, folder: Path) -> None:
    """Measure a centralised line, unless its file is there."""
    target = folder / "centralised" / f"{name}.json"
    if target.exists():
        return
    start_s = time.process_time()
    any_line = LINES["fedrecon"]
    scenario = protocol.scenario(any_line, any_line.tried[0], data, only_validation=False)
    result = measure_reference(name, scenario.loaded, SEEDS, SEARCH_SEED)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, json.dumps(result, indent=1).encode())
    note_cost(target, time.process_time() - start_s)
    print(f"{name}: {result['chosen']}, {result['seeds']}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run", help="search, then the seeds with what was chosen")
    runs.add_argument("data", type=Path)
    runs.add_argument("--lines", nargs="+", metavar="LINE", help=", ".join((*REFERENCES, *LINES)))
    runs.add_argument("--protocol", choices=PROTOCOLS, default="ml-100k-leave-one-out")
    page = verbs.add_parser("page", help="write the page, and its figures into the pages of methods")
    page.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "leaderboard.md")
    for verb in (runs, page):
        verb.add_argument("--runs", type=Path, default=RUNS, help="where the runs are kept")
    asked = parser.parse_args(arguments)
    if asked.verb == "page":
        titles = {name: protocol.title for name, protocol in PROTOCOLS.items()}
        asked.out.write_text(page_of(asked.runs, titles), encoding="utf-8")
        if (asked.out.parent / "methods").is_dir():
            renew(asked.out)
        return
    everything = (*REFERENCES, *LINES)
    lines = asked.lines or everything
    if unknown := [name for name in lines if name not in everything]:
        parser.error(f"no line {unknown[0]!r}; there are {', '.join(everything)}")
    protocol, folder = PROTOCOLS[asked.protocol], asked.runs / asked.protocol
    for name in lines:
        work = run_reference if name in REFERENCES else run_line
        work(name, protocol, asked.data.resolve(), folder)


if __name__ == "__main__":
    main()
