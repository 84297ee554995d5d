"""Secure sums, privacy and faults that contradict themselves, each other, or the rest of a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused
from scenario_files import LINES

from edge.privacy import accounting

BASE = (*LINES[:12], "  upload: dense", "  weighting: uniform", *LINES[12:])
"""What every secure sum and every mechanism accepts: dense updates that weigh the same."""
FIRST = len(BASE) + 1
"""The line that added sections start at."""
MASKED = "secure_aggregation: {mode: secagg-plus}"
CENTRAL = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1}"


def with_sections(*added: str) -> str:
    """Return the scenario with lines behind it."""
    return "\n".join((*BASE, *added)) + "\n"


def without(line: str, *added: str) -> str:
    """Return the scenario without one of its lines, and with lines behind it."""
    assert line in BASE
    return "\n".join((*(one for one in BASE if one != line), *added)) + "\n"


def instead(line: str, other: str, *added: str) -> str:
    """Return the scenario with a line exchanged, and with lines behind it."""
    assert line in BASE
    return "\n".join((*(other if one == line else one for one in BASE), *added)) + "\n"


def summed(settings: str) -> str:
    return with_sections(f"secure_aggregation: {{{settings}}}")


def private(settings: str, section: str = MASKED) -> str:
    return with_sections(section, f"privacy: {{{settings}}}")


def at(column: int, path: str, message: str, line: int = FIRST) -> str:
    return f"s.yaml:{line}:{column}: {path}: {message}"


def of_privacy(column: int, key: str, message: str) -> str:
    """Return an error of the section that follows that of the sum."""
    return at(column, f"privacy.{key}", message, FIRST + 1)


def of_fault(column: int, key: str, message: str) -> str:
    return at(column, f"faults[0].{key}", message, FIRST + 1)


LOCAL = "privacy: {mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 1}"
SHARES = "privacy: {mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1}"
SECTION = "secure_aggregation"
SUMS = [
    case("unknown mode", summed("mode: secaggplus"),
         at(28, f"{SECTION}.mode", "'secaggplus' is not one of: off, secagg, secagg-plus, active, ckks"),
         hint="did you mean 'secagg-plus'?"),
    case("mode missing", summed("clip: 1"),
         at(1, f"{SECTION}.mode", "missing; write one of: off, secagg, secagg-plus, active, ckks")),
    case("settings of a sum that is not made", summed("mode: off, clip: 1"),
         at(33, f"{SECTION}.clip", "unknown key"), hint="known keys: mode"),
    case("bits of ciphertexts", summed("mode: ckks, crypto: modelled, bits: 64"),
         at(52, f"{SECTION}.bits", "unknown key")),
    case("crypto that is neither", summed("mode: secagg, crypto: fake"),
         at(44, f"{SECTION}.crypto", "'fake' is none of: real, modelled")),
    case("ring of 16 bits", summed("mode: secagg, bits: 16"),
         at(42, f"{SECTION}.bits", "16 is no size of the ring; write 32 or 64")),
    case("clip of zero", summed("mode: secagg, clip: 0"),
         at(42, f"{SECTION}.clip", "'0' is not positive; write a number above 0")),
    case("a clip that is no normal number", summed("mode: secagg, clip: 5e-324"),
         at(42, f"{SECTION}.clip", "4.94066e-324 is too small: clipped to it, values would vanish"),
         hint="write 1e-30 or more"),
    case("a clip that is too small for float32", summed("mode: ckks, crypto: modelled, clip: 9.9e-31"),
         at(58, f"{SECTION}.clip", "9.9e-31 is too small: clipped to it, values would vanish in float32"),
         hint="write 1e-30 or more"),
    case("deadline without a unit", summed("mode: secagg, stage_deadlines: {unmask: 5}"),
         at(62, f"{SECTION}.stage_deadlines.unmask", "'5' has no unit; write '5 s'")),
    case("deadline of zero", summed("mode: secagg, stage_deadlines: {share_keys: 0 s}"),
         at(66, f"{SECTION}.stage_deadlines.share_keys", "'0 s' is zero")),
    case("deadline of a stage that has none", summed("mode: secagg, stage_deadlines: {unmasc: 5 s}"),
         at(54, f"{SECTION}.stage_deadlines.unmasc", "unknown key"), hint="did you mean 'unmask'?"),
    case("degree without threshold", summed("mode: secagg-plus, neighbours: 10"),
         at(41, f"{SECTION}.neighbours", "needs 'threshold' beside it; write both or none")),
    case("threshold without degree", summed("mode: secagg-plus, threshold: 10"),
         at(41, f"{SECTION}.threshold", "needs 'neighbours' beside it; write both or none")),
    case("threshold below half", summed("mode: secagg-plus, neighbours: 10, threshold: 5"),
         at(68, f"{SECTION}.threshold",
            "unsafe-threshold: a threshold of 5 out of 11 shares is unsafe; write 6 to 11")),
    case("threshold above the shares", summed("mode: secagg-plus, neighbours: 10, threshold: 12"),
         at(68, f"{SECTION}.threshold", "unsafe-threshold: a threshold of 12 out of 11 shares")),
    case("more corrupt than few neighbours withstand",
         summed("mode: secagg-plus, neighbours: 2, threshold: 2"),
         at(53, f"{SECTION}.neighbours", "infeasible: with 2 neighbours each no threshold is safe for 50 "
            "devices, 5 of them corrupt and 5 dropping out; write 12 or more, 12 with a threshold of 10 or "
            "more, or 'unsafe: true'")),
    case("more corrupt than a threshold withstands",
         summed("mode: secagg, neighbours: 49, threshold: 27, corrupt: 20%"),
         at(63, f"{SECTION}.threshold", "unsafe-threshold: a threshold of 27 out of 50 shares is unsafe for "
            "50 devices, 10 of them corrupt; write 31 to 50, or 'unsafe: true'")),
    case("more corrupt than withstood in a phase",
         with_sections("phases:", "  - {name: a, rounds: 10}", "  - {name: b, rounds: 10, "
                       "secure_aggregation: {mode: active, neighbours: 2, threshold: 2}}"),
         at(74, f"phases[1].{SECTION}.neighbours", "infeasible: with 2 neighbours each no threshold is safe",
            line=FIRST + 2)),
    case("unsafe without a graph", summed("mode: secagg-plus, unsafe: true"),
         at(41, f"{SECTION}.unsafe", "the graph that is chosen by default is safe; leave it out"),
         hint="or write 'neighbours' and 'threshold'"),
    case("odd degree", summed("mode: secagg-plus, neighbours: 9, threshold: 8"),
         at(53, f"{SECTION}.neighbours", "infeasible: 50 devices cannot have 9 neighbours each")),
    case("too many drop out", summed("mode: active, dropout: 45%"),
         at(45, f"{SECTION}.dropout",
            "infeasible: 0.1 corrupt and twice 0.45 dropping out are together above 0.9; write smaller")),
    case("a single contributor", summed("mode: secagg, min_contributors: 1"),
         at(54, f"{SECTION}.min_contributors", "a sum over 1 is that device's update; write 2 or more")),
    case("a single contributor of ciphertexts", summed("mode: ckks, crypto: modelled, min_contributors: 1"),
         at(70, f"{SECTION}.min_contributors", "a sum over 1 is that device's update; write 2 or more")),
    case("more contributors than devices", summed("mode: secagg, min_contributors: 51"),
         at(54, f"{SECTION}.min_contributors",
            "a sum needs 51 contributors, and a round has 50 devices at most"),
         hint="write less, or a larger cohort in rounds"),
    case("more contributors than ciphertexts", summed("mode: ckks, crypto: modelled, min_contributors: 51"),
         at(70, f"{SECTION}.min_contributors",
            "a sum needs 51 contributors, and a round has 50 devices at most")),
    case("too many corrupt for the cohort",
         instead("  cohort: 50", "  cohort: 2", "secure_aggregation: {mode: secagg, corrupt: 60%}"),
         at(45, f"{SECTION}.corrupt", "a sum needs 3 contributors, and a round has 2 devices at most")),
    case("a cohort of one", instead("  cohort: 50", "  cohort: 1", MASKED),
         at(11, "rounds.cohort", "a secure sum needs 2 devices or more, not 1", line=17),
         hint="write more, or 'mode: off' in secure_aggregation"),
    case("a cohort of one ciphertext",
         instead("  cohort: 50", "  cohort: 1", "secure_aggregation: {mode: ckks, crypto: modelled}"),
         at(11, "rounds.cohort", "a secure sum needs 2 devices or more, not 1", line=17)),
    case("weights that overflow",
         instead("  weighting: uniform", "  weighting: examples",
                 "secure_aggregation: {mode: secagg, examples_max: 50_000_000}"),
         at(50, f"{SECTION}.examples_max", "overflowing-config: 50 devices with numbers up to 50000000")),
    case("counts that overflow", summed("mode: secagg, examples_max: 50_000_000"),
         at(50, f"{SECTION}.examples_max", "overflowing-config: 50 devices with numbers up to 50000000 "
            "overflow 32 bits; 42949672 would fit")),
    case("counts beyond exact ciphertexts",
         summed("mode: ckks, crypto: modelled, examples_max: 999999999999"),
         at(66, f"{SECTION}.examples_max", "overflowing-config: sums are exact up to 17592186044416")),
    case("sparse updates", without("  upload: dense", MASKED),
         at(1, "learning.upload", "a sparse update names the items that a device rated, and cannot be summed "
            "securely", line=10),
         hint="write 'upload: dense' in learning"),
    case("sparse updates in a phase",
         without("  upload: dense", "phases:", "  - {name: a, rounds: 10}",
                 "  - {name: b, rounds: 10, secure_aggregation: {mode: secagg}}"),
         at(1, "learning.upload", "a sparse update names the items that a device rated", line=10)),
    case("unsafe in a phase",
         with_sections("phases:", "  - {name: a, rounds: 10}",
                       "  - {name: b, rounds: 10, secure_aggregation: {mode: secagg, min_contributors: 51}}"),
         at(80, f"phases[1].{SECTION}.min_contributors", "a sum needs 51 contributors", line=FIRST + 2)),
]  # fmt: skip

PRIVACY = [
    case("noise on nothing",
         "\n".join((*LINES[:7], "  features: {kind: synthetic}", *LINES[7:10], "  algorithm: local-context",
                    "  model: {kind: zero-order}", *LINES[12:], CENTRAL)) + "\n",
         at(1, "privacy", "'local-context' uploads nothing that noise could hide; leave it out", line=20)),
    case("unknown mechanism", private("mechanism: laplace, clip_norm: 1, noise_multiplier: 1"),
         of_privacy(22, "mechanism", "'laplace' is not one of: central-gaussian, local-gaussian, "
            "distributed-discrete-gaussian")),
    case("no bound", private("mechanism: central-gaussian, noise_multiplier: 1"),
         of_privacy(1, "clip_norm", "missing; write 'clip_norm: ...'")),
    case("a bound too small to scale to",
         private("mechanism: central-gaussian, clip_norm: 1e-301, noise_multiplier: 1"),
         of_privacy(51, "clip_norm", "1e-301 is too small: clipped to it, values would vanish in float32"),
         hint="write 1e-30 or more"),
    case("a sampler that there is not",
         private("mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, sampler: exact"),
         of_privacy(84, "sampler", "'exact' is none of: discrete, floating-point")),
    case("a sampler of noise in shares",
         private("mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1, "
                 "sampler: discrete"),
         of_privacy(88, "sampler", "unknown key")),
    case("a certain failure",
         private("mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, delta: 1"),
         of_privacy(82, "delta", "1 promises nothing; write a number below 1, such as '1e-5'")),
    case("weights by examples", instead("  weighting: uniform", "  weighting: examples", CENTRAL),
         at(3, "learning", "weights by examples leave no bound on what one user does to a sum", line=11),
         hint="write 'weighting: uniform', if the method has it"),
    case("sparse updates with local noise",
         without("  upload: dense", LOCAL),
         at(1, "learning.upload", "a sparse update names the items that a user rated, past any noise", 10),
         hint="write 'upload: dense' in learning"),
    case("amplified without equal chances",
         instead("  deadline: 60 s", "  deadline: 60 s\n  selection: availability-aware",
                 "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, "
                 "amplification: sampling}"),
         of_privacy(90, "amplification", "counts on every device being as likely to be invited as any other"),
         hint="write 'selection: random' in rounds"),
    case("amplified local noise",
         private("mechanism: local-gaussian, clip_norm: 1, noise_multiplier: 1, amplification: sampling"),
         of_privacy(73, "amplification", "unknown key")),
    case("shares of noise in the clear",
         private("mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1",
                 "secure_aggregation: {mode: off}"),
         at(28, f"{SECTION}.mode", "noise in shares needs a sum under masks"),
         hint="write 'mode: secagg-plus'"),
    case("shares of noise without any section",
         with_sections(SHARES),
         at(1, f"{SECTION}.mode", "noise in shares needs a sum under masks", line=1)),
    case("shares of noise under encryption",
         private("mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1",
                 "secure_aggregation: {mode: ckks, crypto: modelled}"),
         at(28, f"{SECTION}.mode", "noise in shares needs a sum under masks")),
    case("shares of noise in one phase only",
         with_sections(SHARES,
                       "phases:", "  - {name: a, rounds: 10, secure_aggregation: {mode: secagg}}",
                       "  - {name: b, rounds: 10, secure_aggregation: {mode: off}}"),
         at(54, f"phases[1].{SECTION}.mode", "noise in shares needs a sum under masks", line=FIRST + 3)),
    case("less noise than the ring has steps",
         private("mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1e-9"),
         of_privacy(85, "noise_multiplier", "overflowing-config: part 'update' has noise of")),
    case("more noise than the ring has room",
         private("mechanism: distributed-discrete-gaussian, clip_norm: 1, noise_multiplier: 1e12"),
         of_privacy(85, "noise_multiplier", "overflowing-config: 50 devices of weight up to 1 and noise")),
    case("a promise about privacy that nobody keeps",
         instead("  round.completed: [rate == 100%]", "  privacy.epsilon: [last <= 3]"),
         at(3, 'thresholds."privacy.epsilon"', "is only known with a section 'privacy'", line=20)),
]  # fmt: skip


def fault(settings: str, mode: str = "secagg-plus") -> str:
    return with_sections(f"secure_aggregation: {{mode: {mode}}}", f"faults: [{{{settings}}}]")


PHASED = ("phases:", "  - {name: plain, rounds: 10, secure_aggregation: {mode: off}}",
          "  - {name: masked, rounds: 10, secure_aggregation: {mode: secagg}}")  # fmt: skip
STAGES_OF_MASKS = "invite, download, compute, advertise-keys, share-keys, masked-input, unmask, acknowledge"
FAULTS = [
    case("report of a sum", fault("name: a, at_stage: report, vanish: {}"),
         of_fault(30, "at_stage", "no device comes to the stage 'report' there"),
         hint=f"write one of {STAGES_OF_MASKS}"),
    case("signature without a check", fault("name: a, at_stage: consistency, vanish: {}"),
         of_fault(30, "at_stage", "no device comes to the stage 'consistency' there"),
         hint=f"write one of {STAGES_OF_MASKS}"),
    case("shares of ciphertexts",
         fault("name: a, at_stage: share-keys, vanish: {}", "ckks, crypto: modelled"),
         of_fault(30, "at_stage", "no device comes to the stage 'share-keys' there"),
         hint="write one of invite, download, compute, masked-input, unmask, acknowledge"),
    case("masks in the clear", fault("name: a, at_stage: masked-input, vanish: {}", "off"),
         of_fault(30, "at_stage", "no device comes to the stage 'masked-input' there"),
         hint="write one of invite, download, compute, report, acknowledge"),
    case("a stage that is none", fault("name: a, at_stage: lunch, vanish: {}"),
         of_fault(30, "at_stage", "no device comes to the stage 'lunch' there")),
    case("a stage of another phase",
         with_sections(*PHASED, "faults: [{name: a, during: plain, at_stage: unmask, vanish: {}}]"),
         at(45, "faults[0].at_stage", "no device comes to the stage 'unmask' there", line=FIRST + 3),
         hint="write one of invite, download, compute, report, acknowledge"),
    case("a phase that is none",
         with_sections(*PHASED, "faults: [{name: a, during: maskd, at_stage: unmask, vanish: {}}]"),
         at(28, "faults[0].during", "unknown phase 'maskd'", line=FIRST + 3), hint="did you mean 'masked'?"),
    case("a phase where there are none", fault("name: a, during: storm, at_stage: unmask, vanish: {}"),
         of_fault(28, "during", "unknown phase 'storm'"),
         hint="the scenario has no phases"),
    case("two faults of a name",
         fault("name: a, at_stage: unmask, vanish: {}}, {name: a, at_stage: compute, vanish: {}"),
         at(58, "faults[1].name", "a second fault 'a'; rename one", line=FIRST + 1)),
    case("a fault that does nothing", fault("name: a, at_stage: unmask"),
         at(10, "faults[0]", "says not what happens; write one of vanish, slowdown, ", FIRST + 1)),
    case("a fault that strikes nobody", fault("name: a, at_stage: unmask, vanish: {}, on: {fraction: 0%}"),
         of_fault(65, "on.fraction", "'0%' is zero")),
    case("a fault that strikes more than all",
         fault("name: a, at_stage: unmask, vanish: {}, on: {fraction: 2}"),
         of_fault(65, "on.fraction", "'2' is more than the whole")),
    case("victims by profile", fault("name: a, at_stage: unmask, vanish: {}, on: {profile: x}"),
         of_fault(55, "on.profile", "unknown key")),
]  # fmt: skip


def shielded(test: str, *added: str, mode: str = "secagg-plus") -> str:
    """Return a scenario of fedmmf whose shielded devices report in the clear, with lines behind it."""
    masked = {
        "  ratings_per_user: 30": ("  ratings_per_user: 30", "  features: {kind: synthetic}"),
        "  algorithm: fedrecon": ("  algorithm: fedmmf", "  mask: {kind: zero-order}"),
    }
    lines = [one for line in BASE for one in masked.get(line, (line,))]
    return "\n".join((*lines, f"secure_aggregation: {{mode: {mode}, shielded: {{{test}}}}}", *added)) + "\n"


RECOVERY = "test: recovery, at_most: 50%"
OTHERS = "phases: [{name: a, rounds: 20}, {name: b, rounds: 1, secure_aggregation: {mode: secagg}}]"
OF_SHIELD = f"{SECTION}.shielded"
SHIELDED = [
    case("masks of another method", summed(f"mode: secagg, shielded: {{{RECOVERY}}}"),
         at(36, OF_SHIELD, "judges the masks of fedmmf, and this method has none; leave it out")),
    case("reports outside the noise",
         shielded(RECOVERY, SHARES),
         at(41, OF_SHIELD,
            "a report in the clear would be outside the sum that the noise of 'privacy' protects",
            line=FIRST + 2), hint="leave one of them out"),
    case("reports beside ciphertexts", shielded(RECOVERY, mode="ckks, crypto: modelled"),
         at(52, OF_SHIELD, "unknown key", line=FIRST + 2)),
    case("reports beside reports", shielded(RECOVERY, mode="off"),
         at(33, OF_SHIELD, "unknown key", line=FIRST + 2), hint="known keys: mode"),
    case("a test that is none", shielded("test: indicater, at_most: 1"),
         at(58, f"{OF_SHIELD}.test", "'indicater' is not one of: indicator, recovery", line=FIRST + 2),
         hint="did you mean 'indicator'?"),
    case("a test without a limit", shielded("test: indicator"),
         at(41, f"{OF_SHIELD}.at_most", "missing; write 'at_most: ...'", line=FIRST + 2)),
    case("more than all recovered", shielded("test: recovery, at_most: 2"),
         at(77, f"{OF_SHIELD}.at_most", "'2' is more than the whole", line=FIRST + 2)),
    case("an indicator below zero", shielded("test: indicator, at_most: -1"),
         at(78, f"{OF_SHIELD}.at_most", "'-1' is too small; write 0 or more", line=FIRST + 2)),
    case("everything held out", shielded("test: indicator, at_most: 1, held_out: 100%"),
         at(91, f"{OF_SHIELD}.held_out", "leaves nothing to fit a mask to; write less, such as '20%'",
            line=FIRST + 2)),
    case("stars of the indicator", shielded("test: indicator, at_most: 1, within_stars: 1"),
         at(81, f"{OF_SHIELD}.within_stars", "unknown key", line=FIRST + 2)),
    case("a sparse sum beside a mixed one",
         shielded(RECOVERY, OTHERS)
         .replace("  upload: dense", "  upload: sparse").replace("  count: 20", "  max_wait: 1 h"),
         at(11, "learning.upload", "a sparse update names the items that a device rated", line=15)),
    case("a fault at a stage of reports where all are summed",
         with_sections(MASKED, "faults: [{name: a, at_stage: report, vanish: {}}]"),
         of_fault(30, "at_stage", "no device comes to the stage 'report' there")),
    case("a way that is none",
         shielded(RECOVERY).replace("round.completed: [rate", "device.completed{way=cleer}: [rate"),
         at(3, 'thresholds."device.completed{way=cleer}"', "unknown way 'cleer'", line=FIRST + 1),
         hint="did you mean 'clear'?"),
]  # fmt: skip

CASES = [*SUMS, *PRIVACY, *FAULTS, *SHIELDED]


@pytest.fixture(autouse=True)
def _accountable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no case depend on whether the extra dp is installed; that is tested elsewhere."""
    monkeypatch.setattr(accounting, "available", lambda: True)


@pytest.mark.parametrize("malformed", CASES, ids=lambda malformed: malformed.name)
def test_each_is_refused_at_its_place(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)


def test_no_two_are_alike() -> None:
    assert len({malformed.name for malformed in CASES}) == len(CASES)
