"""Over random scenarios with secure sums and faults: every byte has one fate, every sum is exact."""

import random
from collections import Counter
from pathlib import Path

import pytest
from byte_checks import bytes_of, check_run
from random_faults import random_faults
from secure_helpers import STAGES

AVAILABILITY = [
    "always_on",
    "bernoulli_google",
    "{kind: on-off, session: {distribution: exponential, mean: 6 s}, "
    "gap: {distribution: exponential, mean: 4 s}}",
    "flash_heavy_tail",
]
NETWORKS = [
    "{edge_2g: 30%, 3g_umts_driving: 70%}",
    "{wifi_home: 100%}",
    "{4g_driving: 60%, starlink: 40%}",
    "{3g_uk: 100%}",
]
MECHANISMS = ["central-gaussian", "local-gaussian", "distributed-discrete-gaussian"]


def random_secure_scenario(seed: int, *, all_kinds: bool = False) -> str:
    """Return a small scenario of phases that sum in different ways, with faults at any of their stages.

    Devices vanish, or with ``all_kinds`` anything goes wrong.
    """
    generator = random.Random(f"secure {seed}")
    users = generator.randint(20, 120)
    cohort = generator.randint(2, max(2, users // 2))
    private = generator.random() < 0.3
    mechanism = generator.choice(MECHANISMS)
    masked_only = private and mechanism == "distributed-discrete-gaussian"
    sections = []
    for _ in range(generator.randint(1, 3)):
        modes = ["secagg", "secagg-plus", "active"]
        mode = generator.choice(modes if masked_only else [*modes, "ckks", "off"])
        limits = ", ".join(
            f"{stage}: {generator.choice(['300 ms', '2 s', '15 s'])}"
            for stage in ("share_keys", "masked_input", "consistency", "unmask")
        )
        settings = [f"mode: {mode}"]
        if mode != "off":
            crypto = "modelled" if mode == "ckks" else generator.choice(["real", "modelled"])
            settings += [f"crypto: {crypto}", f"stage_deadlines: {{{limits}}}"]
        if mode not in ("off", "ckks"):
            settings += [
                f"bits: {generator.choice([32, 64])}",
                f"dropout: {generator.choice(['10%', '30%'])}",
            ]
        sections.append((mode, "{" + ", ".join(settings) + "}"))
    struck = ["download", "compute", *STAGES.get(generator.choice(sections)[0], ())]
    phases = "".join(
        f"  - {{name: p{number}, rounds: {generator.randint(1, 2)}, secure_aggregation: {section}}}\n"
        for number, (_, section) in enumerate(sections)
    )
    faults = "".join(
        f"  - {{name: f{number}, at_stage: {generator.choice(struck)}, vanish: {{}}, "
        f"on: {{fraction: {generator.choice([5, 20, 60])}%}}}}\n"
        for number in range(generator.randint(0, 3))
    )
    if all_kinds:
        sending = {
            stage: None for mode, _ in sections for stage in STAGES.get(mode, ()) if stage != "compute"
        }
        faults = random_faults(random.Random(f"faults {seed}"), ["invite", *sending, "acknowledge"])
    elif faults:
        faults = f"faults:\n{faults}"
    privacy = f"{{mechanism: {mechanism}, clip_norm: 0.5, noise_multiplier: 1, accounting: false}}"
    return f"""
format: 2
seed: {seed}
data: {{source: synthetic-ratings, users: {users}, items: {generator.choice([30, 200])}, ratings_per_user: 8}}
fleet:
  devices: {{phone_mid_2020: 50%, phone_legacy_2014: 50%}}
  networks: {generator.choice(NETWORKS)}
  availability: {generator.choice(AVAILABILITY)}
coordinator: {{up_rate: {generator.choice(["10 Gbit/s", "1 Mbit/s"])}}}
connection: {{keep_alive: {generator.choice(["true", "false"])}}}
learning: {{algorithm: fedrecon, factors: {generator.choice([2, 8])}, upload: dense, weighting: uniform}}
rounds:
  cohort: {cohort}
  quorum: {generator.choice(["1", "50%"])}
  over_select: {generator.choice(["100%", "140%"])}
  deadline: {generator.choice(["3 s", "12 s", "60 s"])}
  selection: random
phases:
{phases}{"privacy: " + privacy if private else ""}
{faults}
evaluation: {{every: 100, final: false}}
"""


def check_scenarios(
    seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch, *, all_kinds: bool = False
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Check a run of each seed; count how rounds ended, why sums failed, and kinds of events."""
    ended: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in seeds:
        try:
            with monkeypatch.context() as patch:
                text = random_secure_scenario(seed, all_kinds=all_kinds)
                tables = check_run(folder, text, seed, patch)
            for row in tables.read("rounds").to_pylist():
                ended[row["outcome"]] += 1
                failed[row["secagg_failure"]] += 1
                assert row["secagg_sum_error"] in (None, 0)
                assert row["secagg_double_reveals"] in (None, 0)
                masked = row["secagg_double_reveals"] is not None
                assert (row["secagg_sum_error"] is not None) == (masked and row["outcome"] == "completed")
            kinds.update(tables.read("events")["kind"].to_pylist())
            assert bytes_of(tables) > 0
        except Exception as error:
            error.add_note(f"replay with random_secure_scenario({seed}, {all_kinds=})")
            raise
    return ended, failed, kinds


@pytest.mark.slow
def test_bytes_are_conserved_among_faults_of_all_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(1000, 1005)
    ended, _, _ = check_scenarios(seeds, tmp_path, monkeypatch, all_kinds=True)
    assert ended["completed"] + ended["abandoned"] >= len(seeds)


@pytest.mark.slow
def test_bytes_are_conserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, failed, kinds = check_scenarios(range(10), tmp_path, monkeypatch)
    assert ended["completed"] > 3
    assert ended["abandoned"] > 3
    assert len(failed) >= 3
    assert {"keys", "sealed-shares", "masked-input", "unmask-shares", "late", "duplicate"} <= kinds.keys()
