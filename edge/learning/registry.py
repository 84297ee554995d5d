"""The methods by name.

The ``learning`` section of a scenario is the settings model of one method; its field ``algorithm`` selects
which. The built-in methods are listed in :mod:`edge.core.plugins`; see docs/adding-an-algorithm.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from edge.core.plugins import ALGORITHMS, PluginKind, View
from edge.learning.base import Algorithm, Problem


def _lacks(method: type[Algorithm[Any]]) -> Iterator[str]:
    """Yield what keeps a method from being found by its name, or from being made."""
    algorithm = method.Settings.model_fields.get("algorithm")
    if algorithm is None or len(get_args(algorithm.annotation)) != 1:
        yield "has no Settings with a field 'algorithm: Literal[\"its-name\"]'"
    for name in sorted(method.__abstractmethods__) if inspect.isabstract(method) else ():
        yield f"has no method '{name}'"


def _name_of(method: type[Algorithm[Any]]) -> str:
    return method.name()


KIND: Final = PluginKind("algorithm", Algorithm, _name_of, _lacks)
"""The extension point."""

METHODS: Final[Mapping[str, type[Algorithm[Any]]]] = View(ALGORITHMS)
"""Every method by the name that ``learning.algorithm`` gives it."""


def create(settings: BaseModel, problem: Problem) -> Algorithm[Any]:
    """Make the method that ``settings`` belong to.

    Raises
    ------
    ValueError : ``settings`` belong to no registered method, or the problem lacks what the method needs.
    """
    name: str = getattr(settings, "algorithm", "")
    if name not in METHODS or type(settings) is not METHODS[name].Settings:
        known = ", ".join(sorted(METHODS))
        raise ValueError(f"{type(settings).__name__} are settings of no registered method; there are {known}")
    return METHODS[name].create(settings, problem)
