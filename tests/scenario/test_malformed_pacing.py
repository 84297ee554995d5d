"""Selection and pacing that contradict themselves, or the rest of a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused
from scenario_files import LINES

from coordinator.scenario.load import load

BASE = (*LINES[:12], "  upload: dense", "  weighting: uniform", *LINES[12:16])
"""What secure sums accept too; the settings of rounds are the last."""
AT = len(BASE) + 1
"""The line that added settings start at."""
LOCAL = "privacy: {mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 1}"
CENTRAL = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1}"
MASKED = "secure_aggregation: {mode: secagg-plus}"
REGRESSION = (
    "format: 2",
    "data: {source: synthetic-regression, clients: 60, samples_per_client: 9, features: 3}",
    "fleet: {mix: global_android_2024}",
)


def rounds(*added: str, sections: tuple[str, ...] = ()) -> str:
    """Return a scenario with settings of its rounds, and sections behind them."""
    return "\n".join((*BASE, *(f"  {line}" for line in added), *sections)) + "\n"


def regression(learning: str, pacing: str) -> str:
    lines = (*REGRESSION, f"learning: {{algorithm: linear-regression, {learning}}}")
    return "\n".join((*lines, f"rounds: {{count: 2, cohort: 5, pacing: {pacing}}}")) + "\n"


def at(column: int, path: str, message: str, line: int = AT) -> str:
    return f"s.yaml:{line}:{column}: {path}: {message}"


def of_mode(message: str) -> str:
    return at(18, "rounds.pacing.mode", message)


BUFFERED = "pacing: {mode: buffered, concurrency: 9}"
PARTIAL = "pacing: {mode: partial-work}"
STEPS = "local: {method: gradient-steps, steps: 5, learning_rate: 0.1}"

PACING = [
    case("mode unknown", rounds("pacing: {mode: bufered, concurrency: 9}"),
         of_mode("'bufered' is not one of: synchronous, partial-work, tiers, buffered"),
         hint="did you mean 'buffered'?"),
    case("mode missing", rounds("pacing: {grace: 2 s}"), at(3, "rounds.pacing.mode", "missing")),
    case("word for a section", rounds("pacing: buffered"), at(11, "rounds.pacing", "'buffered' where a")),
    case("key of another mode", rounds("pacing: {mode: synchronous, concurrency: 9}"),
         at(31, "rounds.pacing.concurrency", "unknown key")),
    case("concurrency missing", rounds("pacing: {mode: buffered}"),
         at(3, "rounds.pacing.concurrency", "missing")),
    case("nobody at work", rounds("pacing: {mode: buffered, concurrency: 0}"),
         at(41, "rounds.pacing.concurrency", "'0' is too small; write 1 or more")),
    case("more at work than there are", rounds("pacing: {mode: buffered, concurrency: 201}"),
         at(41, "rounds.pacing.concurrency", "201 devices at work, but the data has 200 clients")),
    case("staleness below nothing", rounds("pacing: {mode: buffered, concurrency: 9, staleness_limit: -1}"),
         at(61, "rounds.pacing.staleness_limit", "'-1' is too small; write 0 or more")),
    case("weight unknown", rounds("pacing: {mode: buffered, concurrency: 9, staleness_weight: sqrt}"),
         at(62, "rounds.pacing.staleness_weight", "'sqrt' is none of: inverse-sqrt, constant")),
    case("grace without a unit", rounds("pacing: {mode: synchronous, grace: 5}"),
         at(38, "rounds.pacing.grace", "'5' has no unit; write '5 s'")),
    case("grace of nothing", rounds("pacing: {mode: synchronous, grace: 0 s}"),
         at(38, "rounds.pacing.grace", "'0 s' is zero")),
    case("margin beyond the deadline", rounds("pacing: {mode: partial-work, margin: 120%}"),
         at(40, "rounds.pacing.margin", "'120%' is more than the whole")),
    case("grace of a buffer", rounds("pacing: {mode: buffered, concurrency: 9, grace: 5 s}"),
         at(44, "rounds.pacing.grace", "unknown key")),
    case("over-selection of a buffer", rounds(BUFFERED, "over_select: 150%"),
         at(3, "rounds.over_select", "nobody is invited in vain with buffered pacing; leave it out", AT + 1)),
    case("pauses of a buffer", rounds(BUFFERED, "interval: 5 s"),
         at(3, "rounds.interval", "there is no pause between the steps of buffered pacing", AT + 1)),
    case("secure sum of a buffer", rounds(BUFFERED, sections=(MASKED,)),
         of_mode("a secure sum is over devices that began with the same model; a buffer mixes models"),
         hint="write another mode, or 'mode: off' in secure_aggregation"),
    case("secure sum of a phase of a buffer",
         rounds(BUFFERED, sections=(
             f"phases: [{{name: one, rounds: 10}}, {{name: two, rounds: 10, {MASKED}}}]",)),
         of_mode("a secure sum is over devices that began with the same model; a buffer mixes models")),
    case("privacy of a buffer",
         rounds(BUFFERED, sections=(
             "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1}",)),
         of_mode("what privacy has been spent is accounted for by rounds, which a buffer does not have")),
    case("gradient norm of a buffer",
         regression(f"{STEPS}, stop_gradient_norm: 0.1", BUFFERED.removeprefix("pacing: ")),
         at(125, "learning.stop_gradient_norm", "reports on several models do not add up to a gradient", 4)),
    case("faults of rounds in a buffer",
         rounds(BUFFERED, sections=(
             "faults:",
             "  - {name: late, flash_crowd: {after: 2 s}}",
             "  - {name: crash, at: 5 s, for: 2 s, coordinator_crash: {}}",
             "  - {name: slow, coordinator_slow: {handling: 1 s}}",
             "  - {name: heavy, on: {slowest: 10%}, slowdown: {factor: 2}}",)),
         at(18, "faults[0].flash_crowd", "strikes the devices of a round together, and a buffer", AT + 2),
         at(38, "faults[1].coordinator_crash", "strikes the devices of a round together, and a b", AT + 3),
         at(18, "faults[2].coordinator_slow", "strikes the devices of a round together, and a bu", AT + 4),
         at(24, "faults[3].on.slowest", "no round says who is slowest in it: a buffer has none", AT + 5)),
    case("partial gradient", regression("local: {method: gradient}", PARTIAL.removeprefix("pacing: ")),
         at(46, "rounds.pacing.mode", "an update of this method is not made of local steps", 5),
         hint="write another mode, or 'method: gradient-steps' in learning.local"),
    case("norm of partial work",
         regression(f"{STEPS}, stop_gradient_norm: 0.1", PARTIAL.removeprefix("pacing: ")),
         at(125, "learning.stop_gradient_norm", "the norm of an update says nothing of the gradient", 4)),
    case("partial work of groups",
         rounds(PARTIAL).replace("  users: 200", "  users: 200\n  users_per_client: 4"),
         at(18, "rounds.pacing.mode", "devices that hold several users do not share their time", AT + 1)),
    case("partial work in a secure sum", rounds(PARTIAL, sections=(MASKED,)),
         of_mode("partial work weighs a part of an update, and secure sums need whole weights")),
    case("partial work with privacy",
         rounds(PARTIAL, sections=(LOCAL,)),
         of_mode("partial work weighs a part of an update, and privacy need whole weights")),
    case("grace of a secure sum", rounds("pacing: {mode: synchronous, grace: 5 s}", sections=(MASKED,)),
         at(31, "rounds.pacing.grace", "under secure aggregation every stage has a deadline of its own")),
    case("tiers too small for the quorum", rounds("pacing: {mode: tiers, tiers: 10}", "quorum: 30"),
         at(32, "rounds.pacing.tiers", "a tier would have 20 of the 200 devices, fewer than the quorum of"),
         hint="write fewer tiers, or a lower quorum"),
]  # fmt: skip

SELECTION = [
    case("policy unknown", rounds("selection: {policy: ort}"),
         at(23, "rounds.selection.policy", "'ort' is not one of: random, availability-aware"),
         hint="did you mean 'oort'? or load it by --plugin FILE"),
    case("key of another policy", rounds("selection: {policy: round-robin, candidates: 3}"),
         at(36, "rounds.selection.candidates", "unknown key")),
    case("losses under secure aggregation", rounds("selection: oort", sections=(MASKED,)),
         at(14, "rounds.selection", "'oort' looks at the losses of single devices, which nobody sees")),
    case("losses with noise of the devices",
         rounds("selection: power-of-choice", sections=(LOCAL,)),
         at(14, "rounds.selection", "'power-of-choice' looks at the losses of single devices, which")),
    *(
        case(f"{policy} beside noise on the sum", rounds(f"selection: {policy}", sections=(CENTRAL,)),
             at(14, "rounds.selection", f"'{policy}' looks at what devices reported without noise, of which"),
             hint="write 'selection: random', 'availability-aware' or 'round-robin'")
        for policy in ("oort", "power-of-choice", "deadline-aware")
    ),
    case("tiers beside noise on the sum", rounds("pacing: {mode: tiers, tiers: 2}", sections=(CENTRAL,)),
         of_mode("tiers are by speed: what devices reported without noise, of which no epsilon counts"),
         hint="write another mode, or leave privacy out"),
]  # fmt: skip


@pytest.mark.parametrize("malformed", [*PACING, *SELECTION], ids=lambda malformed: malformed.name)
def test_each_is_refused_at_its_place(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)


@pytest.mark.parametrize(
    "pacing",
    [
        "{mode: synchronous, grace: 5 s}",
        "{mode: partial-work, margin: 50%, grace: 5 s}",
        "{mode: tiers, tiers: 4, profiling: 2, every: 5, credits: 3}",
        "{mode: buffered, concurrency: 200, staleness_limit: 0, staleness_weight: constant}",
    ],
)
def test_what_is_written_out_in_full_is_accepted(pacing: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(rounds(f"pacing: {pacing}"))
    assert load(path).scenario.rounds.pacing.mode == pacing.split()[1].rstrip(",")
