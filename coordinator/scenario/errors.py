"""Errors of scenario files, and how a validator says at which key a problem is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from device_profiles.errors import DocumentError, Path
from edge.core.errors import RecfleetError

_SHOWN_PROBLEMS = 50


class ScenarioError(RecfleetError):
    """A scenario that cannot be run; ``problems`` holds every error that was found, in reading order."""

    def __init__(self, problems: Sequence[DocumentError]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"... and {len(self.problems) - _SHOWN_PROBLEMS} more errors")
        super().__init__("\n".join(lines))


class FieldProblem(NamedTuple):
    """A problem at ``path``, which is relative to the value being validated."""

    path: Path
    message: str
    suggestion: str | None = None
    of_key: bool = False
    """True when the key itself is wrong, not its value."""


class FieldProblemsError(ValueError):
    """Raised by validators that look at several fields, with the key each problem belongs to."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))


def did_you_mean(written: str, known: Iterable[str], *, listed: str | None = None) -> str | None:
    """Return a hint for a name that does not exist.

    Parameters
    ----------
    written : the name in the scenario.
    known : the names that exist.
    listed : when nothing is close, list the known names under this heading; None lists nothing.
    """
    import difflib  # noqa: PLC0415 - and heapq, only for names that do not exist

    names = sorted(known)
    lowered = {name.lower(): name for name in reversed(names)}
    close = difflib.get_close_matches(written.lower(), list(lowered), n=1, cutoff=0.6)
    if close:
        return f"did you mean {lowered[close[0]]!r}?"
    if listed is None or not names:
        return None
    return f"{listed}: {', '.join(names)}"
