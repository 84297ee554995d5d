"""Verdicts as JUnit XML, the form that CI systems read test results in.

One ``testsuite`` per scenario, cell of a sweep or method compared. Its first test cases are its runs, each
with the ``time`` that it took on this host, and an ``error`` if it did not finish. Then there is a
``testcase`` per threshold, its ``classname`` the scenario, its ``time`` 0; a missed one has a ``failure``
whose ``message`` is the verdict.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.engine.run_files import write_atomically
from coordinator.results.sweep import CellResult
from coordinator.results.tables.reader import read_manifest

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document can hold, not even escaped."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test case.

    Attributes
    ----------
    name : of a threshold, a run or an invariant.
    failure, error : why it failed, or could not be judged; neither when it passed.
    wall_s : time on this host; None where nobody has measured it.
    """

    name: str
    failure: str | None = None
    error: str | None = None
    wall_s: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite: its name, the scenario that its cases are of, and the cases."""

    name: str
    scenario: str
    cases: tuple[Case, ...]


def wall_s_of(directory: Path) -> float | None:
    """Return how long a run took on its host, from data to report; None where its manifest does not say.

    Raises
    ------
    RunFormatError : the manifest is damaged.
    """
    measured = read_manifest(directory).get("measured", {})
    parts = [measured[part] for part in ("assemble_s", "run_s", "write_s") if part in measured]
    return sum(parts) if parts else None


def cases_of(records: Iterable[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Return a test case for each verdict of one run."""
    return tuple(
        Case(record["threshold"], None if record["held"] else verdict_text(record)) for record in records
    )


def verdict_text(record: Mapping[str, Any]) -> str:
    """Return the verdict on a missed threshold as one line."""
    return f"MISSED {record['threshold']} ({record['reason']})"


def cases_of_repeats(
    runs: Mapping[int, Sequence[Mapping[str, Any]]],
    errors: Mapping[int, str],
    wall_s: Mapping[int, float | None],
) -> tuple[Case, ...]:
    """Return a test case for each of several runs, and for each threshold: it fails if any run missed it.

    Parameters
    ----------
    runs : records of the verdicts of each finished run, by seed.
    errors : why a run did not finish, by seed.
    wall_s : how long a run took on its host, by seed, where that is known.
    """
    cases = [
        Case(f"run, seed {seed}", error=errors.get(seed), wall_s=wall_s.get(seed))
        for seed in sorted({*runs, *errors})
    ]
    missed: dict[str, list[str]] = {}
    for seed, records in sorted(runs.items()):
        for record in records:
            found = missed.setdefault(record["threshold"], [])
            if not record["held"]:
                found.append(f"seed {seed}: {verdict_text(record)}")
    cases += [Case(name, "; ".join(found) if found else None) for name, found in missed.items()]
    return tuple(cases)


def suite_of_cell(scenario: str, result: CellResult) -> Suite:
    """Return the test suite of a cell of a sweep."""
    runs = {seed: one.verdicts for seed, one in result.results.items() if one.figures is not None}
    errors = {seed: one.error or one.status for seed, one in result.results.items() if one.figures is None}
    for loaded in result.cell.runs:
        if loaded.scenario.seed not in result.results:
            errors[loaded.scenario.seed] = "not run"
    places = {seed: one.directory for seed, one in result.results.items() if one.directory is not None}
    wall_s = {seed: wall_s_of(directory) for seed, directory in places.items()}
    return Suite(f"{scenario}, {result.cell.label}", scenario, cases_of_repeats(runs, errors, wall_s))


def junit_xml(suites: Sequence[Suite]) -> bytes:
    """Return the document, UTF-8."""
    root = ET.Element("testsuites", _counts([case for suite in suites for case in suite.cases]))
    for suite in suites:
        node = ET.SubElement(root, "testsuite", {"name": _text(suite.name), **_counts(suite.cases)})
        for case in suite.cases:
            names = {"classname": _text(suite.scenario), "name": _text(case.name)}
            inner = ET.SubElement(node, "testcase", {**names, **_times([case])})
            for tag, kind, text in (("failure", "threshold", case.failure), ("error", "run", case.error)):
                if text is not None:
                    ET.SubElement(inner, tag, {"message": _text(text), "type": kind}).text = _text(text)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": str(sum(case.error is not None for case in cases)),
        "skipped": "0",
        **_times(cases),
    }


def _times(cases: Sequence[Case]) -> dict[str, str]:
    known = [case.wall_s for case in cases if case.wall_s is not None]
    return {"time": f"{sum(known):.3f}"} if known else {}


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def write_junit(path: Path, suites: Sequence[Suite]) -> None:
    """Write the document atomically."""
    write_atomically(path, junit_xml(suites))
