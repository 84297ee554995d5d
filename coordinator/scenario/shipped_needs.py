"""What the shipped scenarios need: data to be downloaded, extras of recfleet, and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.extends import read_chain
from coordinator.scenario.shipped import shipped_files
from device_profiles.documents import Node

__all__ = ["RUN_S", "ShippedScenario", "shipped_scenarios"]

RUN_S: Final[Mapping[str, int]] = {
    "async_buffered": 8,
    "bank_branches": 7,
    "battery_savers": 3,
    "context_baselines": 2,
    "coordinator_crash": 4,
    "distributed_dp": 15,
    "dropout_sweep": 3,
    "fedmmf_high_order": 8,
    "fedmmf_lastfm": 7,
    "fedmmf_one_order": 7,
    "fedmmf_shielded": 4,
    "fedmmf_synthetic": 6,
    "fedmmf_tradeoff": 4,
    "fedmmf_two_order": 8,
    "flash_crowd": 4,
    "hospital_network": 7,
    "implicit_feedback": 3,
    "implicit_secure": 6,
    "iot_gateways": 3,
    "linear_regression_10x5": 2,
    "method_comparison": 3,
    "million_dormant": 7,
    "movielens_100k": 6,
    "movielens_1m": 14,
    "night_charging": 5,
    "on_device_inference": 2,
    "oort_vs_random": 2,
    "persistent_factors": 2,
    "poisoned_updates": 4,
    "quickstart": 2,
    "regional_outage": 4,
    "robust_aggregation": 3,
    "secagg_active": 6,
    "secagg_basic": 5,
    "secagg_dropout_storm": 10,
    "secagg_dropouts": 10,
    "secagg_vs_plain_vs_ckks": 3,
    "sharpness_radii": 3,
    "shop_app": 16,
    "smart_home_iot": 5,
    "social_mobile": 4,
    "stragglers": 4,
    "subway": 3,
    "targeted_poisoning": 4,
    "uk_rural": 3,
    "unseen_users": 4,
}
"""Seconds of one core of a server, all included, that `recfleet run` of each takes."""


@dataclass(frozen=True, slots=True)
class ShippedScenario:
    """One line of the list of shipped scenarios.

    Attributes
    ----------
    name : of its file, without the suffix.
    title : what it is, in a line.
    source : ``data.source`` where the data must be downloaded; None where it is made up.
    extras : the extras of recfleet that it needs, sorted.
    run_s : about how long a run takes, seconds of one core.
    """

    name: str
    title: str
    source: str | None
    extras: tuple[str, ...]
    run_s: int


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
