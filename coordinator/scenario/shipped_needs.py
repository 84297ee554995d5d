"""What the shipped scenarios need: data to be downloaded, extras of recfleet, and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.extends import read_chain
from coordinator.scenario.shipped import shipped_files
from device_profiles.documents import Node

__all__ = ["RUN_S", "ShippedScenario", "shipped_scenarios"]

RUN_S: Final[Mapping[str, float]] = {}
"""About how long `recfleet run` of each takes, seconds of one core of a server of 2.5 GHz."""


@dataclass(frozen=True, slots=True)
class ShippedScenario:
    """One line of the list of shipped scenarios.

    Attributes
    ----------
    name : of its file, without the suffix.
    title : what it is, in a line.
    source : ``data.source`` where the data must be downloaded; None where it is made up.
    extras : the extras of recfleet that it needs, sorted.
    run_s : about how long a run takes, seconds.
    """

    name: str
    title: str
    source: str | None
    extras: tuple[str, ...]
    run_s: float


def shipped_scenarios() -> Iterator[ShippedScenario]:
    """Yield what each shipped scenario needs, by name.

    The files are read and not checked: a check refuses a scenario whose extras are not installed.
    """
    for name, file in shipped_files().items():
        root = read_chain(file, []).document.root
        data = root["data"]
        source = str(data["source"]) if isinstance(data, dict) else ""
        yield ShippedScenario(
            name=name,
            title=str(root["title"]),
            source=None if source.startswith("synthetic-") else source,
            extras=tuple(sorted(_extras(root))),
            run_s=RUN_S[name],
        )


def _extras(root: Mapping[str, Node]) -> Iterator[str]:
    secure, privacy = root.get("secure_aggregation"), root.get("privacy")
    if isinstance(secure, dict) and secure.get("mode") == "ckks" and secure.get("crypto") != "modelled":
        yield "he"
    if isinstance(privacy, dict) and privacy.get("accounting") != "false":
        yield "dp"
    if root.get("inference") is not None:
        yield "export"
