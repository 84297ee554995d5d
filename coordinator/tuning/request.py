"""What is asked of a tuning, on the command line and in a file: a goal, and keys with ranges or lists.

The file is YAML::

    minimise: round.duration p95
    vary:
      rounds.cohort: 10..100
      rounds.deadline: 5 s..60 s
      rounds.over_select: [100%, 130%, 150%]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coordinator.scenario.errors import ScenarioError, did_you_mean
from coordinator.scenario.merge import parse_override, parse_setting_path
from coordinator.tuning.goal import Goal, TuneError, parse_goal
from coordinator.tuning.space import Space, TunedKey, parse_key, space_of
from device_profiles.documents import Document, read_document
from device_profiles.errors import DocumentError
from device_profiles.quantities import quoted

__all__ = ["read_request"]

VARY: Final = "--vary"
"""The file name in positions of what is varied by the command line; the line is the number of the option."""
_MINIMISE, _MAXIMISE, _VARY = "minimise", "maximise", "vary"
_KEYS: Final = (_MINIMISE, _MAXIMISE, _VARY)


def read_request(
    file: Path | None, vary: Sequence[str], minimise: str | None, maximise: str | None
) -> tuple[Space, Goal]:
    """Return what is varied, and what for.

    Parameters
    ----------
    file : a space file; None without one.
    vary : from the command line, ``key=range``.
    minimise, maximise : figures from the command line; with those of the file they are one goal.

    Raises
    ------
    ScenarioError : with every error of the file and of what is varied, at its place.
    TuneError : no goal, more than one, or one that there is not; or nothing is varied.
    """
    problems: list[DocumentError] = []
    axes: list[TunedKey] = []
    goals = [(text, more) for text, more in ((minimise, False), (maximise, True)) if text is not None]
    if file is not None:
        try:
            document = read_document(file, problems=problems)
        except DocumentError as error:
            raise ScenarioError([*problems, error]) from None
        goals += _of_file(document, axes, problems)
    for number, text in enumerate(vary, start=1):
        try:
            axes.append(parse_key(*parse_override(VARY, number, text)))
        except DocumentError as error:
            problems.append(error)
    try:
        space = space_of(axes)
    except DocumentError as error:
        problems.append(error)
    if problems:
        raise ScenarioError(problems)
    if not axes:
        raise TuneError("nothing is varied; write such as --vary rounds.cohort=10..100, or --space FILE")
    if len(goals) != 1:
        how = "no goal is given" if not goals else f"{len(goals)} goals are given, keep one"
        raise TuneError(
            f"{how}; write such as --minimise 'round.duration p95' or --maximise 'model.ndcg@10 last'"
        )
    text, more = goals[0]
    return space, parse_goal(text, maximise=more)


def _of_file(
    document: Document, axes: list[TunedKey], problems: list[DocumentError]
) -> list[tuple[str, bool]]:
    """Return the goals of a space file; its axes and what is wrong go to the lists."""
    goals = []
    for key, node in document.root.items():
        place = document.position((key,), of_key=True)
        if key not in _KEYS:
            problems.append(
                DocumentError(place, (key,), "unknown key", did_you_mean(key, _KEYS, listed="known keys"))
            )
        elif key == _VARY:
            if not isinstance(node, dict):
                message = "keys with ranges belong here; write such as 'rounds.cohort: 10..100'"
                problems.append(DocumentError(place, (key,), message))
                continue
            for name, values in node.items():
                here = (_VARY, name)
                positions = (document.position(here, of_key=True), document.position(here))
                path = parse_setting_path(name)
                if path is None:
                    message = f"{quoted(name)} is not a setting; write it like 'rounds.cohort'"
                    problems.append(DocumentError(positions[0], here, message))
                    continue
                try:
                    axes.append(parse_key(path, values, positions))
                except DocumentError as error:
                    problems.append(error)
        elif isinstance(node, str):
            goals.append((node, key == _MAXIMISE))
        else:
            message = "a figure belongs here; write such as 'round.duration p95'"
            problems.append(DocumentError(place, (key,), message))
    return goals
