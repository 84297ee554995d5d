"""Faults that contradict themselves or the rest of a scenario: refused in place, with what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused
from scenario_files import LINES

BASE = tuple(line for line in LINES if "count" not in line)
PHASES = "phases: [{name: calm, rounds: 10}, {name: storm, rounds: 10}]"
LINE = len(BASE) + 2
"""The line of the faults, after that of the phases."""


def fault(inside: str) -> str:
    """Return a scenario with one fault."""
    return "\n".join((*BASE, PHASES, f"faults: [{{name: x, {inside}}}]")) + "\n"


def at(column: int, path: str, message: str) -> str:
    return f"s.yaml:{LINE}:{column}: faults[0]{path}: {message}"


WHAT = [
    case("nothing that happens", fault("at_stage: download"),
         at(10, "", "says not what happens; write one of vanish, slowdown, bandwidth, latency, ")),
    case("two things that happen", fault("vanish: {}, reset: {}, at_stage: download"),
         at(32, ".reset", "a second thing that happens beside vanish; write a fault for each")),
    case("a link and more", fault("blackout: {}, loss: {probability: 5%}, corrupt: {}"),
         at(59, ".corrupt", "a second thing that happens beside loss; write a fault for each")),
    case("misspelt kind", fault("vanihs: {}, at_stage: download"),
         at(20, ".vanihs", "unknown key"),
         hint="did you mean 'vanish'? or load it by --plugin FILE"),
    case("kind without a mapping", fault("blackout: yes"),
         at(30, ".blackout", "'yes' where a mapping belongs; write 'key: value' lines")),
    case("settings of another kind", fault("blackout: {factor: 2}"),
         at(31, ".blackout.factor", "unknown key")),
]  # fmt: skip


WHEN = [
    case("vanish at no time", fault("vanish: {}"),
         at(20, ".vanish", "says not when; write 'at_stage' or 'at'")),
    case("reset at no time", fault("reset: {}"),
         at(20, ".reset", "says not when; write 'at_stage', 'at', or a probability")),
    case("in phases and at a time", fault("blackout: {}, at: 5 s, during: storm"),
         at(34, ".at", "contradicts during; write one of the two")),
    case("unknown phase in a list", fault("blackout: {}, during: [storm, clam]"),
         at(50, ".during[1]", "unknown phase 'clam'"),
         hint="did you mean 'calm'?"),
    case("no phase in a list", fault("blackout: {}, during: []"),
         at(42, ".during", "a list where phases belong; write a name, or a list of names")),
    case("mapping of phases", fault("blackout: {}, during: {a: b}"),
         at(42, ".during", "a mapping where phases belong; write a name, or a list of names")),
    case("lasts from nowhere, of devices", fault("slowdown: {factor: 2}, at_stage: compute, for: 5 s"),
         at(62, ".for", "says not from when; write 'at'")),
    case("lasts from nowhere, of links", fault("blackout: {}, for: 5 s"),
         at(34, ".for", "says not from when; write 'at' or 'at_stage'")),
    case("before the beginning", fault("blackout: {}, at: -5 s"),
         at(38, ".at", "'-5 s' is negative; a duration is zero or more")),
    case("time without a unit", fault("blackout: {}, at: 5"),
         at(38, ".at", "'5' has no unit; write '5 s'")),
    case("no time at all", fault("blackout: {}, at: 5 s, for: 0 s"),
         at(48, ".for", "'0 s' is zero; write more, such as '5 s'")),
    case("crash without an end", fault("coordinator_crash: {}, at: 4 s"),
         at(20, ".coordinator_crash", "says not when the coordinator comes back; write 'for: ...' "
            "in the fault")),
    case("crash without a beginning", fault("coordinator_crash: {}, for: 4 s"),
         at(43, ".for", "says not from when; write 'at' or 'at_stage'")),
    case("crash at a time and at a stage",
         fault("coordinator_crash: {}, at: 4 s, for: 4 s, at_stage: report"),
         at(62, ".at_stage", "contradicts at; write one of the two")),
]  # fmt: skip


WHERE = [
    case("misspelt stage", fault("vanish: {}, at_stage: downlaod"),
         at(42, ".at_stage", "no device comes to the stage 'downlaod' there"),
         hint="did you mean 'download'?"),
    case("stage of a secure sum", fault("corrupt: {}, at_stage: unmask"),
         at(43, ".at_stage", "no device comes to the stage 'unmask' there"),
         hint="write one of invite, download, report, acknowledge"),
    case("slowdown at download", fault("slowdown: {factor: 2}, at_stage: download"),
         at(53, ".at_stage", "slowdown cannot be pinned to 'download': devices compute nothing at it"),
         hint="write one of compute"),
    case("blackout at compute", fault("blackout: {}, at_stage: compute"),
         at(44, ".at_stage", "blackout cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("bandwidth at compute", fault("bandwidth: {scale: 5%}, at_stage: compute"),
         at(54, ".at_stage", "bandwidth cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("latency at compute", fault("latency: {mean: 5 ms}, at_stage: compute"),
         at(53, ".at_stage", "latency cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("loss at compute", fault("loss: {probability: 5%}, at_stage: compute"),
         at(55, ".at_stage", "loss cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("flapping at download", fault("flapping: {period: 5 s, up: 50%}, at_stage: download"),
         at(64, ".at_stage", "flapping cannot be pinned to 'download': a link goes on and off "
            "whatever is sent"),
         hint="leave it out"),
    case("one of two that cannot be pinned",
         fault("latency: {mean: 5 ms}, flapping: {period: 5 s, up: 50%}, at_stage: download"),
         at(87, ".at_stage", "flapping cannot be pinned to 'download': a link goes on and off"),
         hint="leave it out"),
    case("late at compute", fault("late: {by: 4 s}, at_stage: compute"),
         at(47, ".at_stage", "late cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("reorder at compute", fault("reorder: {}, at_stage: compute"),
         at(43, ".at_stage", "reorder cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("duplicate at compute", fault("duplicate: {}, at_stage: compute"),
         at(45, ".at_stage", "duplicate cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("corrupt at compute", fault("corrupt: {}, at_stage: compute"),
         at(43, ".at_stage", "corrupt cannot be pinned to 'compute': nothing is sent at it"),
         hint="write one of invite, download, report, acknowledge"),
    case("battery_drain at compute", fault("battery_drain: {level: 5%}, at_stage: compute"),
         at(58, ".at_stage", "battery_drain cannot be pinned to 'compute': a battery falls before the "
            "round begins"),
         hint="leave it out"),
    case("memory_pressure at compute", fault("memory_pressure: {factor: 5%}, at_stage: compute"),
         at(61, ".at_stage", "memory_pressure cannot be pinned to 'compute': memory is short when the "
            "device computes"),
         hint="leave it out"),
    case("clock_skew at report", fault("clock_skew: {ahead: 4 s}, at_stage: report"),
         at(56, ".at_stage", "clock_skew cannot be pinned to 'report': a clock is wrong at all stages"),
         hint="leave it out"),
    case("flash_crowd at download", fault("flash_crowd: {after: 4 s}, at_stage: download"),
         at(57, ".at_stage", "flash_crowd cannot be pinned to 'download': devices send nothing at it"),
         hint="write one of invite, report"),
    case("poisoned_updates at report", fault("poisoned_updates: {kind: nan}, at_stage: report"),
         at(61, ".at_stage", "poisoned_updates cannot be pinned to 'report': an update is spoilt when it "
            "is computed"),
         hint="leave it out"),
    case("coordinator_slow at report", fault("coordinator_slow: {handling: 4 ms}, at_stage: report"),
         at(66, ".at_stage", "coordinator_slow cannot be pinned to 'report': it is slow with every frame"),
         hint="leave it out"),
    case("coordinator_crash at compute", fault("coordinator_crash: {}, at_stage: compute, for: 4 s"),
         at(53, ".at_stage", "coordinator_crash cannot be pinned to 'compute': no frame of it comes to "
            "the coordinator"),
         hint="write one of invite, report"),
    case("reset of frames while computing", fault("reset: {probability: 5%}, at_stage: compute"),
         at(41, ".reset.probability", "no frame is sent while a device computes; leave it out")),
]  # fmt: skip


WHOM = [
    case("everybody twice", fault("blackout: {}, on: {devices: [3, 3]}"),
         at(52, ".on.devices[1]", "device 3 a second time; leave it out")),
    case("nobody by number", fault("blackout: {}, on: {devices: []}"),
         at(48, ".on.devices", "names nobody; write numbers such as [0, 7], or leave it out")),
    case("beyond the last device", fault("blackout: {}, on: {devices: [3, 9999]}"),
         at(52, ".on.devices[1]", "there is no device 9999; the last of 200 is 199")),
    case("below the first device", fault("blackout: {}, on: {devices: [-1]}"),
         at(49, ".on.devices[0]", "'-1' is too small; write 0 or more")),
    case("unknown class", fault("blackout: {}, on: {class: phone_mid_2022}"),
         at(46, ".on.class", "no device of the fleet has class 'phone_mid_2022'"),
         hint="did you mean 'phone_mid_2020'?"),
    case("unknown network", fault("blackout: {}, on: {network: 4g_slwo}"),
         at(48, ".on.network", "no device of the fleet has network '4g_slwo'"),
         hint="did you mean '4g_slow'?"),
    case("unknown region", fault("blackout: {}, on: {region: region-3}"),
         at(47, ".on.region", "no device of the fleet has region 'region-3'"),
         hint="did you mean 'region-0'?"),
    case("slowest drawn once", fault("blackout: {}, on: {fixed: true, slowest: 5%}"),
         at(39, ".on.fixed", "who is slowest is known only in a round; leave one of 'fixed' "
            "and 'slowest' out")),
    case("slowest of nobody", fault("blackout: {}, on: {slowest: 0%}"),
         at(48, ".on.slowest", "'0%' is zero; write more, such as '30%'")),
    case("drawn once, perhaps", fault("blackout: {}, on: {fixed: maybe}"),
         at(46, ".on.fixed", "'maybe' is not 'true' or 'false'; write one of them")),
    case("unknown filter", fault("blackout: {}, on: {colour: red}"),
         at(39, ".on.colour", "unknown key"),
         hint="known keys: class, devices, fixed, fraction, network, region, slowest"),
    case("devices of a coordinator", fault("coordinator_slow: {handling: 4 ms}, on: {fraction: 5%}"),
         at(56, ".on", "coordinator_slow strikes the coordinator; leave it out")),
    case("direction of a computation", fault("slowdown: {factor: 2}, direction: up"),
         at(43, ".direction", "slowdown has no direction; leave it out")),
    case("direction that is none", fault("blackout: {}, direction: sideways"),
         at(45, ".direction", "'sideways' is none of: up, down, both")),
    case("direction twice", fault("bandwidth: {up: 5 kbit/s}, direction: up"),
         at(47, ".direction", "'up' and 'down' say which way already; leave it out")),
    case("direction of a reset", fault("reset: {}, at_stage: download, direction: up"),
         at(51, ".direction", "a reset has a direction only with a probability for each frame"),
         hint="leave it out"),
]  # fmt: skip


SETTINGS = [
    case("slowdown that is faster", fault("slowdown: {factor: 0.5}"),
         at(39, ".slowdown.factor", "0.5 would be faster; write 1 or more")),
    case("slowdown by nothing", fault("slowdown: {}"),
         at(20, ".slowdown.factor", "missing; write 'factor: ...'")),
    case("bandwidth of nothing", fault("bandwidth: {}"),
         at(31, ".bandwidth", "says nothing; write 'up', 'down' or 'scale' below it")),
    case("bandwidth of zero", fault("bandwidth: {up: 0 kbit/s}"),
         at(36, ".bandwidth.up", "'0 kbit/s' is zero; write more, such as '5 Mbit/s'")),
    case("more than the bandwidth", fault("bandwidth: {scale: 130%}"),
         at(39, ".bandwidth.scale", "'130%' is more than the whole; write at most '100%'")),
    case("no latency", fault("latency: {}"),
         at(20, ".latency.mean", "missing; write 'mean: ...'")),
    case("latency without a unit", fault("latency: {mean: 5}"),
         at(36, ".latency.mean", "'5' has no unit; write '5 s'")),
    case("negative jitter", fault("latency: {mean: 5 ms, jitter: -1 ms}"),
         at(50, ".latency.jitter", "'-1 ms' is negative; a duration is zero or more")),
    case("everything lost", fault("loss: {probability: 100%}"),
         at(40, ".loss.probability", "loses everything; write 'blackout: {}' for a dead link")),
    case("more than everything lost", fault("loss: {probability: 130%}"),
         at(40, ".loss.probability", "'130%' is more than the whole; write at most '100%'")),
    case("flapping that never goes off", fault("flapping: {period: 5 s, up: 100%}"),
         at(48, ".flapping.up", "never goes off; write less than 100%")),
    case("flapping without a period", fault("flapping: {up: 50%}"),
         at(20, ".flapping.period", "missing; write 'period: ...'")),
    case("late by nothing", fault("late: {}"),
         at(20, ".late.by", "missing; write 'by: ...'")),
    case("reorder without a wait", fault("reorder: {wait: 0 s}"),
         at(36, ".reorder.wait", "'0 s' is zero; write more, such as '5 s'")),
    case("never a duplicate", fault("duplicate: {probability: 0%}"),
         at(45, ".duplicate.probability", "'0%' is zero; write more, such as '30%'")),
    case("battery without a level", fault("battery_drain: {}"),
         at(20, ".battery_drain.level", "missing; write 'level: ...'")),
    case("no memory at all", fault("memory_pressure: {factor: 0%}"),
         at(46, ".memory_pressure.factor", "'0%' is zero; write more, such as '30%'")),
    case("clock that is right", fault("clock_skew: {}"),
         at(32, ".clock_skew", "says not how wrong; write 'ahead' or 'behind' below it")),
    case("clock both ways", fault("clock_skew: {ahead: 4 s, behind: 4 s}"),
         at(45, ".clock_skew.behind", "contradicts ahead; write one of the two")),
    case("crowd at no time", fault("flash_crowd: {}"),
         at(20, ".flash_crowd.after", "missing; write 'after: ...'")),
    case("poison of no kind", fault("poisoned_updates: {}"),
         at(20, ".poisoned_updates.kind", "missing; write 'kind: nan' or another")),
    case("promotion of no item rows", fault("explicit_boosting: {}").replace("fedrecon", "colr"),
         at(20, ".explicit_boosting", "'colr' has no scores that are the product of a user's vector and an "
            "item's row, which this attack aims at")),
    case("promotion around a network",
         fault("hard_users: {}").replace("fedrecon\n  factors: 8", "fedrecgel\n  base: {algorithm: fedncf}")
         + "evaluation: {ranking: {}}\n",
         at(20, ".hard_users", "'fedrecgel' has no scores that are the product of a user's vector and an")),
    case("two items at once",
         fault("hard_users: {item: 3}}, {name: y, explicit_boosting: {item: 4}"),
         f"s.yaml:{LINE}:80: faults[1].explicit_boosting.item: '4' is a second item beside '3', and one is "
         "measured"),
    case("unknown poison", fault("poisoned_updates: {kind: zero}"),
         at(45, ".poisoned_updates.kind", "'zero' is none of: nan, huge-norm, sign-flip")),
    case("scale of no number", fault("poisoned_updates: {kind: nan, scale: 4}"),
         at(50, ".poisoned_updates.scale", "what is no number has no scale; leave it out")),
    case("scale of zero", fault("poisoned_updates: {kind: sign-flip, scale: 0}"),
         at(63, ".poisoned_updates.scale", "'0' is not positive; write a number above 0")),
    case("slow by nothing", fault("coordinator_slow: {}"),
         at(20, ".coordinator_slow.handling", "missing; write 'handling: ...'")),
]  # fmt: skip


@pytest.mark.parametrize("malformed", [*WHAT, *WHEN, *WHERE, *WHOM, *SETTINGS], ids=lambda one: one.name)
def test_a_fault_is_refused(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)
