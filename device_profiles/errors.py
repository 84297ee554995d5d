"""Errors raised while profiles and traces are built or read."""

from __future__ import annotations


class ProfileError(ValueError):
    """A profile whose numbers cannot describe a real device, link, availability or fleet.

    Parameters
    ----------
    owner : the profile, as a reader would name it, for example ``device 'phone_mid_2020'``.
    field : name of the offending field, as the profile type spells it.
    problem : what is wrong and what to write instead.
    """

    def __init__(self, owner: str, field: str, problem: str) -> None:
        super().__init__(f"{owner}: {field}: {problem}")
        self.owner = owner
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[ProfileError], tuple[str, str, str]]:
        return type(self), (self.owner, self.field, self.problem)


class UnknownProfileError(LookupError):
    """A name that the catalogue does not hold; ``suggestion`` is the nearest name that it does, or None."""

    def __init__(self, kind: str, name: str, suggestion: str | None) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else "see them all with: recfleet profiles list"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
        self.kind = kind
        self.name = name
        self.suggestion = suggestion

    def __reduce__(self) -> tuple[type[UnknownProfileError], tuple[str, str, str | None]]:
        return type(self), (self.kind, self.name, self.suggestion)


class TraceError(ValueError):
    """A trace, or a file of traces, that cannot be used; the message says where and what was expected."""


class UnsafePickleError(TraceError):
    """A pickle that asks for anything but plain data, or that is larger or deeper than the limits."""
