"""Makes ``docs/leaderboard.md`` of run directories; nothing is run, and no figure comes from elsewhere."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from leaderboard_lines import ABSENT, LINES, Line
from leaderboard_results import (
    CENTRALISED,
    COSTS,
    DECIDES,
    METRICS,
    Entry,
    read_centralised,
    read_line,
)

from coordinator.results.intervals import difference

REFERENCE: Final = "fedmf"
"""The method that others are compared with, seed by seed."""

INTRODUCTION: Final = """\
<!-- Written by `python benchmarks/leaderboard.py page`; what is to be changed is in leaderboard_page.py. -->
# Leaderboard

All methods under one protocol and one search budget, each with its price. The page is made of run directories
and of nothing else, in a checkout:

```text
python benchmarks/leaderboard.py run path/to/data --protocol ml-100k-leave-one-out
python benchmarks/leaderboard.py page
```

The first command goes on where it was interrupted: a run that has ended is not run again.

## The protocol

- **Data.** Every rating is a positive. The last rating of each user is the test, the one before is kept back
  for validation; among equal times it is a random one, which the seed decides. (`temporal`: the last tenth of
  all ratings is the test, the tenth before it validation.)
- **What is ranked.** All items less those that the user trained on and, on the test, those kept back for
  validation. That is not the ranking of one item among 99 (`hr@10/99neg`) of most papers; figures of the two
  are never compared.
- **Negatives.** Where a method needs any, a device draws four for each positive, held-out items like all
  others ([`drawn`](implicit-feedback.md#held-out-items-as-negatives)). A run with another sampler that leaks
  is marked, with the counter's HR@10 beside it.
- **What is scored** is what a device would serve: the coordinator's table with what the user keeps or
  reconstructs. Only FedRAP's devices add a table of their own.
- **Search budget**, the same for each method: three values of one rate, the documented one, about a third of
  it and about three times as much, at seed 1. A run has at most 100 rounds, is looked at every fifth, and
  ends after six looks in a row without a better NDCG@10 on validation. The test is not scored in a search.
- **Test.** The rate with the best NDCG@10 on validation runs with seeds 1 to 3. Each run chooses its round by
  the same figure ([`evaluation.select`](evaluation.md#which-round-is-reported)), and scores the model of that
  round on the test, once.
- **Centralised lines** have the same splits, and three values of one setting, chosen by the same figure:
  item-KNN its neighbours, iALS (k = 32, 12 sweeps) and EASE their penalty. They see everybody's ratings.
- **Privacy.** No noise: ε is none. Uploads go in the clear, and sparse where a method can.
- **Fleet.** Phones of `global_android_2024`, always on; rounds wait for everybody.

Factorisations and tables have 32 numbers an item. Two lines are smaller than documented, to take less time:
FedNCF has 64 numbers an item and the layers of GPFedRec (32-16-8), pFedMe 2 local steps. FedAvg and CoLR were
searched twice, on MovieLens 100K: with the local rate of pFedMe FedAvg diverged, and with the optimiser of
FedMF CoLR hardly moved; both have settings documented for themselves now. Three values are few: a method that
needs a longer search or more rounds is not shown at its best. Lines whose best value is at an end of what was
tried, or whose best round is among the last that were allowed, are named below the table.
"""

NOT_COMPARED: Final = """\
## Other tables

Tables elsewhere are of other protocols, and say which; none of their figures can be set beside those above.

- One held-out item among 99 sampled ones, mostly all devices in each round:
  [FedNCF](methods/fedncf.md#what-it-reaches), [FCF](methods/fcf.md#what-it-reaches),
  [PFedRec](methods/pfedrec.md#what-it-reaches), [FedRAP](methods/fedrap.md#what-it-reaches),
  [GPFedRec](methods/gpfedrec.md#what-it-reaches).
- 4 and 5 stars of MovieLens 1M, a random fifth for the test:
  [implicit feedback](implicit-feedback.md#what-each-method-is-worth).
- Stars and RMSE: [FedRecon](methods/fedrecon.md#what-it-reaches),
  [FedAvg](methods/fedavg-mf.md#what-reconstruction-gives-up-and-what-it-saves).
"""


def _spread(values: Sequence[float], digits: int = 4) -> str:
    mean = f"{statistics.fmean(values):.{digits}f}".lstrip("0")
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}".replace("± 0", "± ")


def _signed(entry: Entry, reference: Entry) -> str:
    """Return the difference in NDCG@10 to the reference, with its interval if the seeds are the same."""
    found = difference(reference.by_seed(DECIDES), entry.by_seed(DECIDES))
    half = found.estimate.half_width
    if not found.paired or half is None:
        return "other seeds"
    return f"{found.estimate.mean:+.4f} ± {half:.4f}".replace("0.", ".").replace("-", "−")


def _mean(entry: Entry, name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in entry.runs.values())


def _table(head: str, rows: Sequence[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join((head, "|" + " --- |" * columns, *rows)) + "\n"


def _accuracy(entries: Sequence[Entry], reference: Entry | None) -> str:
    rows = []
    for entry in sorted(entries, key=lambda one: -one.mean(DECIDES)):
        against = "" if reference is None or entry is reference else _signed(entry, reference)
        cells = [_spread(list(entry.by_seed(metric).values())) for metric in METRICS]
        if entry.line is None:
            title, rounds, sampler, epsilon = f"{entry.title}, centralised", "", "", "none"
        else:
            title = f"[{entry.title}](methods/{entry.line.page}.md)"
            rounds = ", ".join(str(run.round) for run in entry.runs.values())
            results = list(entry.runs.values())
            sampler = ", ".join(dict.fromkeys(run.sampler for run in results))
            counted = [run.counter_hr for run in results if run.counter_hr is not None]
            if counted:
                sampler += f", **leaky protocol**: a counter has HR@10 {_spread(counted)}"
            known = [run.epsilon for run in results if run.epsilon is not None]
            epsilon = f"{max(known):.1f}" if known else "none"
        rows.append(f"| {title} | {' | '.join(cells)} | {against} | {rounds} | {sampler} | {epsilon} |")
    named = "" if reference is None else f"NDCG@10 to {reference.title}"
    return _table(f"| | HR@10 | NDCG@10 | {named} | rounds | sampler | ε |", rows)


def _price(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        down, up = _mean(entry, "down_bytes") / 1e6, _mean(entry, "up_bytes") / 1e6
        each = [_mean(entry, f"participation_{way}_bytes") / 1e3 for way in ("down", "up")]
        rows.append(
            f"| {entry.title} | {down:.2f} + {up:.2f} | {each[0]:.0f} + {each[1]:.1f} |"
            f" {_mean(entry, 'near_best_h'):.2f} | {_mean(entry, 'energy_j'):.1f} |"
        )
    head = (
        "| | MB a device, down + up | kB a participation, down + up"
        " | hours to 95 % of its best | J a device |"
    )
    return _table(head, rows)


def _revealed(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        line = entry.line
        assert line is not None
        names = ("audit.rated_precision", "audit.rated_recall")
        read = ", ".join(f"{entry.audit[name]:.2f}" for name in names) if entry.audit else "no such audit"
        rows.append(
            f"| [{entry.title}](methods/{line.page}.md) | {line.reveals} | {read} | {line.secure_sums} |"
        )
    head = (
        "| | what one upload reveals, seen alone and in the clear | rated items read off | sums under masks |"
    )
    return _table(head, rows)


def _searched(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        if len(entry.search) < 2:
            continue
        values = ", ".join(
            f"**{value}: {found:.4f}**" if value == entry.chosen else f"{value}: {found:.4f}"
            for value, found in entry.search.items()
        )
        rows.append(f"| {entry.title} | {entry.searched} | {values} |".replace(": 0.", ": ."))
    return _table("| | what was tried | NDCG@10 on validation, seed 1; the chosen one in bold |", rows)


def _remarks(entries: Sequence[Entry]) -> str:
    """Say what the figures themselves show: no remark outlives them."""
    federated = [entry for entry in entries if entry.line is not None]
    centralised = [entry for entry in entries if entry.line is None]
    users = max(run.users for entry in federated for run in entry.runs.values())
    middle = statistics.fmean(entry.mean("hr@10") for entry in federated)
    remarks = [
        f"One HR@10 is of {users:,} users: its standard error is about"
        f" {math.sqrt(middle * (1 - middle) / users):.3f}. Deviations and intervals are of seeds alone:"
        " all seeds have the same users."
    ]
    first = max(federated, key=lambda entry: entry.mean(DECIDES))
    if centralised:
        best = max(centralised, key=lambda entry: entry.mean(DECIDES))
        remarks.append(
            f"{first.title} has the highest NDCG@10 of the federated lines, {first.mean(DECIDES):.4f};"
            f" {best.title} of the centralised ones, {best.mean(DECIDES):.4f}. The former less the latter is"
            f" {_signed(first, best)}."
        )
    for popular in (one for one in centralised if one.title == "popularity"):
        below = [one.title for one in federated if one.mean(DECIDES) <= popular.mean(DECIDES)]
        remarks.append(f"Not above popularity under this budget: {_listed(below)}.")
    ends = [one.title for one in entries if len(one.search) > 2 and one.chosen in _ends(one.search)]
    remarks.append(f"Best at an end of what was tried, so that more may be had: {_listed(ends)}.")
    late = [one.title for one in federated if any(run.is_late for run in one.runs.values())]
    remarks.append(f"Best round, of some seed, in the last tenth of those allowed: {_listed(late)}.")
    return "".join(f"- {remark}\n" for remark in remarks).replace(" 0.", " .")


def _chance(entries: Sequence[Entry]) -> str:
    """Return what items drawn at random would give that audit."""
    found = [entry.audit["audit.rated_chance"] for entry in entries if entry.audit]
    return f"; items drawn at random have a precision of {statistics.fmean(found):.2f}" if found else ""


def _listed(titles: Sequence[str]) -> str:
    return "; ".join(titles) or "none"


def _ends(search: Mapping[str, float]) -> tuple[str, str]:
    values = list(search)
    return values[0], values[-1]


def _section(
    runs: Path, protocol: str, title: str, lines: Mapping[str, Line], references: Sequence[str]
) -> str | None:
    """Return the section of a protocol; None where no federated line of it is complete."""
    folder = runs / protocol
    found = {name: entry for name, line in lines.items() if (entry := read_line(folder / name, line))}
    if not found:
        return None
    files = [folder / "centralised" / f"{name}.json" for name in references]
    centralised = [read_centralised(file) for file in files if file.exists()]
    federated = sorted(found.values(), key=lambda one: -one.mean(DECIDES))
    entries = [*federated, *centralised]
    command = f"python benchmarks/leaderboard.py run path/to/data --protocol {protocol}"
    parts = [
        f"## {title}\n",
        "Full rankings of the test: mean ± standard deviation over three seeds, the difference paired by seed"
        "\nwith its 95 % interval. `rounds` are those after which each seed was scored.\n",
        _accuracy(entries, found.get(REFERENCE)),
        _remarks(entries),
        "What it took until the round that was scored. A device is one of the whole fleet, drawn or not; a\n"
        "participation is a device in a round; bytes are on the wire, TCP/IP included. Hours and joules are\n"
        "simulated; hours are until a validation figure of at least 95 % of the best.\n",
        _price(federated),
        "What is revealed: in words, as the methods' pages say, and as precision and recall of the rated\n"
        "items that [an audit](threat-model.md#what-uploads-give-away) reads off single uploads, without\n"
        f"any training, in two rounds{_chance(federated)}.\n"
        "A dense upload is about as long as the download, except for that of CoLR, which is shorter.\n",
        _revealed(federated),
        "What was searched.\n",
        _searched(entries),
        _times(folder / COSTS, found, command),
    ]
    missing = [file.stem for file in files if not file.exists()]
    missing += [name for name in lines if name not in found]
    if missing:
        parts.append(
            f"Not there yet, as these lines took more computing time than there was: {', '.join(missing)}.\n"
            f"`{command} --lines {' '.join(missing)}` makes them.\n"
        )
    return "\n".join(parts)


def _times(file: Path, found: Mapping[str, Entry], command: str) -> str:
    """Say what rebuilding takes, by line."""
    costs: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    of_lines: dict[str, float] = {}
    for name, cpu_s in costs.items():
        line = name.partition("/")[0]
        if line in found or line == "centralised":
            of_lines[line] = of_lines.get(line, 0.0) + cpu_s
    each = ", ".join(f"{line} {cpu_s / 60:.1f}" for line, cpu_s in of_lines.items())
    return (
        f"`{command}` took {sum(of_lines.values()) / 60:.1f} minutes of CPU here,\n"
        f"one core of a virtual machine ({each}).\n"
    )


def page(
    runs: Path,
    protocols: Mapping[str, str],
    lines: Mapping[str, Line] = LINES,
    references: Sequence[str] = CENTRALISED,
) -> str:
    """Return the page, of what is in ``runs``.

    Parameters
    ----------
    protocols : titles by the name of the folder in ``runs``.
    lines, references : federated and centralised ones, by the name of their folder or file.

    Raises
    ------
    ValueError : there is no line that is complete.
    """
    sections = {name: _section(runs, name, title, lines, references) for name, title in protocols.items()}
    there = [section for section in sections.values() if section is not None]
    if not there:
        raise ValueError(f"{runs} has no complete line; `leaderboard.py run` makes them")
    rest = ["## What is not here yet\n"]
    if absent := [name for name in sections if sections[name] is None]:
        rest += [
            "- Protocols. Each command makes one, and the page then has a section of it:\n",
            "    ```text",
            *(f"    python benchmarks/leaderboard.py run path/to/data --protocol {name}" for name in absent),
            "    ```\n",
        ]
    rest += [f"- {name}: {why}." for name, why in ABSENT.items()]
    return "\n".join([INTRODUCTION, *there, "\n".join(rest) + "\n", NOT_COMPARED])
