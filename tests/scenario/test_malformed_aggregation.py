"""Rules and norm bounds that contradict themselves or the rest of a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused
from scenario_files import LINES

from coordinator.scenario.load import load

BASE = (*LINES[:12], "  upload: dense", "  weighting: uniform", *LINES[12:])
FIRST = len(BASE) + 1
"""The line that added sections start at."""
SECURE = "secure_aggregation: {mode: secagg-plus}"
CENTRAL = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}"
LOCAL = "privacy: {mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}"
QUORUM = "  quorum: 80%"


def scenario(settings: str, *more: str, quorum: str = QUORUM) -> str:
    lines = [line for one in BASE for line in ((one, quorum) if one == "  cohort: 50" else (one,))]
    return "\n".join((*lines, f"aggregation: {{{settings}}}", *more)) + "\n"


def refused(
    name: str, settings: str, error: str, *more: str, hint: str | None = None, quorum: str = QUORUM
) -> Malformed:
    return case(name, scenario(settings, *more, quorum=quorum), f"s.yaml:{FIRST + 1}:{error}", hint=hint)


CASES = (
    refused("no rule", "norm_bound: 1", "1: aggregation.rule: missing; write one of: mean, median,"),
    refused(
        "unknown rule",
        "rule: medain",
        "21: aggregation.rule: 'medain' is not one of",
        hint="did you mean 'median'?",
    ),
    refused("trim of a mean", "rule: mean, trim: 10%", "27: aggregation.trim: unknown key"),
    refused("no trim", "rule: trimmed-mean", "1: aggregation.trim: missing"),
    refused(
        "everything trimmed",
        "rule: trimmed-mean, trim: 50%",
        "41: aggregation.trim: 50% at either end leaves",
    ),
    refused("no attackers", "rule: krum", "1: aggregation.attackers: missing"),
    refused(
        "too many attackers",
        "rule: krum, attackers: 50%",
        "38: aggregation.attackers: 20 false reports are withstood in 43, and a round may have 40",
        hint="write less, or a higher quorum in rounds",
    ),
    refused(
        "a low quorum",
        "rule: multi-krum, attackers: 10%",
        "44: aggregation.attackers: 1 false reports are withstood in 5, and a round may have 4",
        quorum="  quorum: 4",
    ),
    refused(
        "a tiny bound", "rule: mean, norm_bound: 1e-301", "39: aggregation.norm_bound: 1e-301 is too small"
    ),
    refused("no bound", "rule: mean, norm_bound: 0", "39: aggregation.norm_bound: "),
    refused(
        "a rule and a secure sum",
        "rule: median",
        "21: aggregation.rule: 'median' looks at single updates, and a secure sum shows none",
        SECURE,
        hint="write 'rule: mean' with a norm_bound, or 'mode: off' in secure_aggregation",
    ),
    refused(
        "a rule and central noise",
        "rule: median",
        "21: aggregation.rule: 'median' is no sum, and the noise of 'central-gaussian' is sized for one",
        CENTRAL,
    ),
    refused(
        "two bounds",
        "rule: mean, norm_bound: 1",
        "27: aggregation.norm_bound: 'privacy.clip_norm' bounds the updates already",
        CENTRAL,
    ),
)


@pytest.mark.parametrize("malformed", CASES, ids=lambda malformed: malformed.name)
def test_it_is_refused(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)


def test_a_rule_and_a_secure_sum_in_one_phase_are_refused(tmp_path: Path) -> None:
    phases = (
        "phases:",
        "  - {name: clear, rounds: 10}",
        "  - {name: summed, rounds: 10, secure_aggregation: {mode: secagg}}",
    )
    text = scenario("rule: median", *phases)
    error = f"s.yaml:{FIRST + 1}:21: aggregation.rule: 'median' looks at single updates"
    check_refused(case("phases", text, error), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        scenario("rule: median, min_senders: 1", LOCAL),
        scenario("rule: mean, norm_bound: 1", SECURE),
        scenario("rule: multi-krum, attackers: 20%, norm_bound: 2"),
        scenario("rule: mean, norm_bound: 1").replace(
            "[rate == 100%]", "[rate == 100%]\n  privacy.clipped: [max < 90%]"
        ),
    ],
)
def test_what_fits_is_taken(text: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert load(file).scenario.aggregation is not None
