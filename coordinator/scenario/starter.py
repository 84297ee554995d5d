"""Files to begin with: a commented scenario that suits its data, and plug-ins with a scenario each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Final

from coordinator.scenario.dump import yaml_lines
from coordinator.scenario.json_schema import MODELINE
from device_profiles import catalogue
from device_profiles.documents import Node
from edge.core import plugins
from edge.core.errors import PluginError

__all__ = ["PLUGIN_KINDS", "module_of", "starter_files", "starter_text"]

PLUGIN_KINDS: Final = {
    "algorithm": plugins.ALGORITHMS,
    "fault": plugins.FAULTS,
    "selector": plugins.SELECTORS,
    "reader": plugins.READERS,
    "sink": plugins.SINKS,
}
"""The kinds of plug-ins by what one is called."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")

_USERS: Final = 200
_LARGEST_COHORT: Final = 50
_SCORED_USERS: Final = 1000

_SYNTHETIC: Final = f"""\
# Ratings are made up from the seed. For your own write {{source: auto, path: ratings.csv}}, a file of user,
# item, rating and perhaps a time; or begin with: recfleet init --data ratings.csv
data:
  source: synthetic-ratings
  users: {_USERS}
  items: 300
  ratings_per_user: 30
"""

_FILE: Final = """\
# {users} users, {items} items, {ratings} ratings. The format is recognised from the content; the path starts
# at the folder of this file. By default a fifth of the ratings of each user is kept back for testing.
data:
{section}
"""

_IMPLICIT: Final = """\
  negatives: 4                       # no rating column: rows are ones, and devices draw four zeros for each
"""

_TEXT: Final = """\
{modeline}
format: 2
title: {title}
description: >
  Written by recfleet init. `recfleet show` prints the keys that are not here, too, with their defaults.
seed: 1

{data}
# One user is one device. What the devices and their networks are: recfleet profiles show {fleet}
# Another mix of them: recfleet profiles list fleets
fleet:
  mix: {fleet}
  availability: bernoulli_google     # 8% of those that take part vanish; the mix's own: {availability}

# Devices rebuild the factors of their user from their own ratings in each round, and send what they have
# learnt about items. Other algorithms: fedmf, fedavg-mf, fedmmf, fedncf, pfedme, ...
learning:
  algorithm: fedrecon
  factors: 8
  learning_rate: 0.05

rounds:
  count: 20
  cohort: {cohort:<16} # reports wanted in a round
  over_select: {over_select:<11} # invited for them, as some do not come or are slow
  quorum: 50%              # of the cohort; with fewer reports the round is abandoned
  deadline: 5 min          # simulated time from the invitation to the last report

evaluation:
  every: 5{users_scored}{ranking}

# Promises: the exit code is 3 if one is missed. Others to begin with, once you know what to expect:
#   round.duration: [p95 < 1 min]
#   model.rmse: [last < 0.95 * first]
thresholds:
  round.completed: [rate >= 90%]

# What a storm of dropouts costs; a coordinator that sees sums alone; settings side by side (recfleet sweep):
# faults: [{{name: storm, at_stage: report, on: {{fraction: 20%}}, vanish: {{}}}}]
# secure_aggregation: {{mode: secagg-plus}}      # and, under learning, upload: dense
# sweep: {{rounds.cohort: [{few}, {cohort}], repeat: 3}}
"""


def starter_text(
    fleet: str,
    *,
    path: str | None = None,
    users: int = _USERS,
    items: int = 0,
    ratings: int = 0,
    implicit: bool = False,
    section: Mapping[str, Node] = MappingProxyType({}),
) -> str:
    """Return the YAML of a scenario that runs as it is.

    Parameters
    ----------
    fleet : the name of a fleet of the catalogue.
    path : the file or folder of the ratings, as the scenario names it; None for ratings that are made up.
    users, items, ratings : how many of each the data has; only with ``path``.
    implicit : the data has no ratings, only who took to what.
    section : what else the section ``data`` says of how the file is read.
    """
    cohort = max(1, min(_LARGEST_COHORT, users * 3 // 5))
    data = _SYNTHETIC
    if path is not None:
        read = "\n".join(yaml_lines({"source": "auto", "path": path, **section}, "  "))
        data = _FILE.format(users=f"{users:,}", items=f"{items:,}", ratings=f"{ratings:,}", section=read)
        data += _IMPLICIT if implicit else ""
    of = "made-up ratings" if path is None else "ratings of a file"
    return _TEXT.format(
        modeline=MODELINE,
        title=f"A first run on {of}",
        data=data,
        fleet=fleet,
        cohort=cohort,
        few=max(1, cohort // 2),
        over_select="130%" if users * 10 >= cohort * 13 else "100%",
        availability=catalogue.load().fleet(fleet).availability,
        users_scored=f"\n  users: {_SCORED_USERS}" if users > _SCORED_USERS else "",
        ranking="\n  ranking: {k: [10]}" if implicit else "",
    )


def module_of(name: str) -> str:
    """Return the name of a module for a plug-in."""
    return name.replace("-", "_")


def starter_files(kind: str, name: str) -> dict[str, str]:
    """Return the contents of the files of a plug-in, by their names, the Python file first.

    Parameters
    ----------
    kind : one of :data:`PLUGIN_KINDS`.
    name : of the plug-in: words of small letters and digits, joined by hyphens or underscores.

    Raises
    ------
    PluginError : a name that cannot be one, or is taken.
    """
    if _NAME.fullmatch(name) is None:
        raise PluginError(f"{name!r} is no name; write small letters, digits and hyphens, such as my-{kind}")
    if kind == "fault" and "-" in name:
        raise PluginError(f"{name!r} is no key of a fault; write {module_of(name)!r}")
    if name in plugins.names(PLUGIN_KINDS[kind]):
        raise PluginError(f"{name!r} is the name of another {kind}; write one that is free")
    module = module_of(name)
    values = {"name": name, "module": module, "Name": "".join(part.title() for part in module.split("_"))}
    found = {}
    for ending in ("py", "yaml", "txt"):
        template = _TEMPLATES / f"{kind}.{ending}.txt"
        if template.is_file():
            found[f"{module}.{ending}"] = Template(template.read_text(encoding="utf-8")).substitute(values)
    return found
