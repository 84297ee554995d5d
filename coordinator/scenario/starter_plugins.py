"""Plug-ins to begin with: each a Python file that passes its checks, and a scenario that uses it."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Final

from edge.core import plugins
from edge.core.errors import PluginError

KINDS: Final = {
    "algorithm": plugins.ALGORITHMS,
    "fault": plugins.FAULTS,
    "selector": plugins.SELECTORS,
    "reader": plugins.READERS,
    "sink": plugins.SINKS,
}
"""The kinds of plug-ins by what one is called."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


def module_of(name: str) -> str:
    """Return the name of a module for a plug-in."""
    return name.replace("-", "_")


def starter_files(kind: str, name: str) -> dict[str, str]:
    """Return the contents of the files of a plug-in, by their names, the Python file first.

    Parameters
    ----------
    kind : one of :data:`KINDS`.
    name : of the plug-in: words of small letters and digits, joined by hyphens or underscores.

    Raises
    ------
    PluginError : a name that cannot be one, or is taken.
    """
    if _NAME.fullmatch(name) is None:
        raise PluginError(f"{name!r} is no name; write small letters, digits and hyphens, such as my-{kind}")
    if kind == "fault" and "-" in name:
        raise PluginError(f"{name!r} is no key of a fault; write {module_of(name)!r}")
    if name in plugins.names(KINDS[kind]):
        raise PluginError(f"{name!r} is the name of another {kind}; write one that is free")
    module = module_of(name)
    values = {"name": name, "module": module, "Name": "".join(part.title() for part in module.split("_"))}
    found = {}
    for ending in ("py", "yaml", "txt"):
        template = _TEMPLATES / f"{kind}.{ending}.txt"
        if template.is_file():
            found[f"{module}.{ending}"] = Template(template.read_text(encoding="utf-8")).substitute(values)
    return found
