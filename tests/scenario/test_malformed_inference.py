"""Scenarios whose devices cannot run models of their own, each refused at its place."""

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused

HEAD = """format: 2
fleet: {mix: global_android_2024}
rounds: {count: 6, cohort: 5}
"""
DATA = "data: {source: synthetic-ratings, users: 20, items: 90}\n"
PLAIN = "learning: {algorithm: fedrecon}\n"


def section(written: str) -> str:
    return f"{HEAD}{DATA}{PLAIN}inference: {{{written}}}\n"


GROUPED = DATA.replace("}", ", users_per_client: 2}")
DEALT = DATA.replace("}", ", clients: 10}")

CASES = [
    case("every 0", section("every: 0"), "s.yaml:6:20: inference.every: '0'"),
    case("never", section("every: 7, devices: 9"),
         "s.yaml:6:20: inference.every: there are 6 rounds, so no device would ever run its model; write 6"),
    case("no devices", section("every: 2, devices: 0"), "s.yaml:6:32: inference.devices: '0'"),
    case("more devices than there are", section("every: 2, devices: 21"),
         "s.yaml:6:32: inference.devices: 21 devices, but the data has 20 clients", hint="write 20 or less"),
    case("empty lists", section("every: 2, top: 0"), "s.yaml:6:28: inference.top: '0'"),
    case("sessions unknown", section("every: 2, sessions: each"), "s.yaml:6:33: inference.sessions: 'each'"),
    case("no tolerance", section("every: 2, tolerance: 0"), "s.yaml:6:34: inference.tolerance: '0'"),
    case("any score", section("every: 2, tolerance: 1"),
         "s.yaml:6:34: inference.tolerance: 1 lets any score pass; write a number below 1, such as '1e-5'"),
    case("unknown key", section("every: 2, sample: 3"), "s.yaml:6:23: inference.sample: unknown key"),
    case("several users a device", f"{HEAD}{GROUPED}{PLAIN}inference: {{every: 2, devices: 5}}\n",
         "s.yaml:4:57: data.users_per_client: a device of several users has no model of its own"),
    case("users dealt to devices", f"{HEAD}{DEALT}{PLAIN}inference: {{every: 2, devices: 5}}\n",
         "s.yaml:4:57: data.clients: a device of several users has no model of its own"),
    case("no ratings",
         f"{HEAD}data: {{source: synthetic-regression}}\nlearning: {{algorithm: linear-regression}}\n"
         "inference: {every: 2}\n",
         "s.yaml:6:1: inference: linear-regression ranks no items, so that devices have nothing to run"),
    case("a threshold without the section",
         f"{HEAD}{DATA}{PLAIN}thresholds: {{inference.latency: [p99 < 1 s]}}\n",
         "s.yaml:6:14: thresholds.\"inference.latency\": is only known with a section 'inference'"),
    case("a threshold on a region",
         f"{section('every: 2, devices: 5')}thresholds: {{'inference.latency{{region=x}}': [p99 < 1 s]}}\n",
         "s.yaml:7:14: thresholds.\"inference.latency{region=x}\": inference.latency has no tag 'region'"),
]  # fmt: skip


@pytest.mark.parametrize("malformed", CASES, ids=lambda malformed: malformed.name)
def test_each_is_refused_at_its_place(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)
