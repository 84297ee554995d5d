"""Runs shipped scenarios in a process of its own: ``shipped_runs.py FOLDER SEED_STEP SETTING... -- NAME...``.

FOLDER gets one run directory a scenario. It is cut short, and has no thresholds: those are for a whole one.
SEED_STEP is added to the seed that it names.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from run_helpers import SCENARIOS, Silent

from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

NEEDS_DATA = {
    "fedmmf_high_order": "ml-100k",
    "fedmmf_lastfm": "lastfm-2k",
    "fedmmf_one_order": "ml-100k",
    "fedmmf_two_order": "ml-100k",
    "movielens_100k": "ml-100k",
    "movielens_1m": "ml-1m",
}
"""The folder of data that a scenario needs, by its name."""

SHORTENED: dict[str, tuple[str, ...]] = {
    "quickstart": ("rounds.count=4", "evaluation.every=2"),
    "linear_regression_10x5": ("rounds.count=10",),
    "unseen_users": ("data.users=200", "rounds.count=2", "rounds.cohort=30", "rounds.quorum=10"),
    "uk_rural": (
        "data.users=800",
        "data.items=300",
        "rounds.cohort=20",
        "rounds.quorum=10",
        "phases=[{name: night, time: 1 h}, {name: morning, time: 1 h}]",
    ),
    "iot_gateways": (
        "data.users=100",
        "data.users_per_client=10",
        "rounds.cohort=8",
        "rounds.quorum=4",
        "rounds.count=2",
    ),
    "million_dormant": (
        "data.users=20000",
        "data.items=500",
        "data.ratings_per_user=20",
        "rounds.count=2",
        "rounds.cohort=60",
        "rounds.quorum=20",
    ),
    "dropout_sweep": ("phases[0].rounds=1", "phases[1].rounds=2", "phases[2].rounds=1"),
    "persistent_factors": ("rounds.count=4", "evaluation.every=2"),
    "method_comparison": ("rounds.count=2", "evaluation.every=2"),
    "implicit_secure": ("rounds.count=2", "rounds.cohort=30", "rounds.quorum=15"),
    "implicit_feedback": ("rounds.count=2", "rounds.cohort=40", "rounds.quorum=20"),
    "fedmmf_synthetic": ("rounds.count=2", "rounds.cohort=20"),
    "fedmmf_shielded": ("rounds.count=2", "rounds.cohort=20"),
    "fedmmf_tradeoff": ("rounds.count=2", "rounds.cohort=20"),
    "on_device_inference": ("rounds.count=2", "rounds.cohort=20", "inference={every: 1, devices: 20}"),
    "secagg_basic": ("rounds.count=2", "rounds.cohort=20"),
    "secagg_dropouts": (
        "rounds.cohort=20",
        "phases=[{name: calm, rounds: 1}, {name: keys, rounds: 1}, {name: shares, rounds: 1},"
        " {name: storm, rounds: 1}, {name: answers, rounds: 1}, {name: flood, rounds: 1},"
        " {name: silence, rounds: 1}, {name: after, rounds: 1}]",
    ),
    "secagg_active": ("rounds.cohort=20", "phases[0].rounds=1", "phases[1].rounds=1"),
    "secagg_vs_plain_vs_ckks": (
        "data.items=300",
        "rounds.cohort=10",
        "phases[0].rounds=1",
        "phases[1].rounds=1",
        "phases[2].rounds=1",
    ),
    "stragglers": (
        "data.users=120",
        "rounds.cohort=30",
        "rounds.quorum=20",
        "phases[0].rounds=1",
        "phases[1].rounds=2",
        "phases[2].rounds=1",
    ),
    "secagg_dropout_storm": (
        "phases=[{name: calm, rounds: 1}, {name: drizzle, rounds: 1}, {name: storm, rounds: 1},"
        " {name: flood, rounds: 1}, {name: silence, rounds: 1}, {name: after, rounds: 1}]",
    ),
    "regional_outage": ("data.users=150", "rounds.cohort=30", "rounds.quorum=20", "rounds.interval=40 s"),
    "flash_crowd": (
        "data.users=100",
        "rounds.cohort=30",
        "phases=[{name: calm, rounds: 1}, {name: crowd, rounds: 1}, {name: slow, rounds: 1},"
        " {name: after, rounds: 1}]",
    ),
    "subway": ("rounds.cohort=30", "rounds.quorum=20", "phases[0].rounds=1", "phases[1].rounds=3"),
    "battery_savers": ("rounds.cohort=30", "rounds.quorum=20", "phases[0].rounds=1", "phases[1].rounds=3"),
    "coordinator_crash": ("rounds.cohort=20", "phases[2].rounds=2"),
    "context_baselines": ("rounds.count=6", "evaluation.every=3"),
    "robust_aggregation": ("rounds.count=4", "evaluation.every=2"),
    "targeted_poisoning": ("rounds.count=4", "evaluation.every=2"),
    "poisoned_updates": (
        "rounds.cohort=30",
        "phases=[{name: honest, rounds: 1}, {name: not-a-number, rounds: 1}, {name: huge, rounds: 1},"
        " {name: wrong-way, rounds: 1}, {name: healing, rounds: 1}]",
    ),
    "async_buffered": ("data.users=600", "rounds.count=10", "rounds.pacing.concurrency=80"),
    "night_charging": (
        "data.users=500",
        "data.items=200",
        "rounds.cohort=30",
        "rounds.quorum=15",
        "phases=[{name: first_night, time: 2 h}, {name: first_day, time: 1 h},"
        " {name: second_night, time: 1 h}]",
    ),
    "oort_vs_random": ("data.users=200", "rounds.count=8", "rounds.cohort=30", "rounds.quorum=20"),
    "hospital_network": ("data.items=100", "rounds.count=2"),
    "bank_branches": (
        "rounds.count=2",
        "data.users=2000",
        "data.clients=100",
        "rounds.cohort=80",
        "privacy.accounting=false",
    ),
    "social_mobile": (
        "data.users=800",
        "data.items=400",
        "rounds.count=6",
        "rounds.cohort=30",
        "rounds.quorum=20",
    ),
    "sharpness_radii": ("rounds.count=2", "rounds.cohort=40", "rounds.quorum=20"),
    "smart_home_iot": ("data.users=300", "rounds.count=3", "rounds.cohort=30", "rounds.quorum=20"),
    "shop_app": (
        "data.users=800",
        "phases=[{name: weekday, rounds: 8}, {name: sale, rounds: 8}]",
    ),
    "distributed_dp": ("data.users=500", "rounds.cohort=60", "rounds.count=2", "privacy.accounting=false"),
}
"""What makes every scenario that needs no download quick."""


def data_folder(name: str) -> Path | None:
    """Return where the data of a scenario in ``NEEDS_DATA`` lies on this host; None where it is not there."""
    root = os.environ.get("RECFLEET_DATA")
    folder = Path(root, NEEDS_DATA[name]) if root else None
    return folder if folder is not None and folder.is_dir() else None


def settings_of(name: str) -> tuple[str, ...]:
    """Return what makes a scenario quick, and where its data is."""
    if name in SHORTENED:
        return SHORTENED[name]
    return ("rounds.count=2", f"data.path={data_folder(name)}")


@dataclass(frozen=True)
class Variant:
    """How a process of its own shall run scenarios."""

    folder: Path
    settings: tuple[str, ...] = ()
    hash_seed: int = 0
    seed_step: int = 0


def run_apart(names: Sequence[str], *variants: Variant) -> None:
    """Run scenarios in a process for each variant, side by side; a failed one fails the test."""
    with contextlib.ExitStack() as stack:
        running = []
        for variant in variants:
            environment = dict(
                os.environ,
                PYTHONHASHSEED=str(variant.hash_seed),
                PYTHONPATH=str(SCENARIOS.parent),
                OPENBLAS_NUM_THREADS="1",
            )
            command = [sys.executable, __file__, str(variant.folder), str(variant.seed_step)]
            process = subprocess.Popen(
                [*command, *variant.settings, "--", *names],
                env=environment,
                text=True,
                stderr=subprocess.PIPE,
            )
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in running:
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors


def main() -> None:
    """Run what the command line names."""
    folder, seed_step, *rest = sys.argv[1:]
    split = rest.index("--")
    for name in rest[split + 1 :]:
        file = SCENARIOS / f"{name}.yaml"
        settings = [*rest[:split], *settings_of(name), "thresholds=null"]
        seed = load(file, settings).scenario.seed + int(seed_step)
        loaded = load(file, [*settings, f"seed={seed}"])
        outcome = run_scenario(loaded, target=Path(folder) / name, observer=Silent())
        assert outcome.status == "finished", f"{name}: {outcome.status}"


if __name__ == "__main__":
    main()
