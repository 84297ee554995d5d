"""Fleets in groups, combined availability and link traces that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused
from scenario_files import with_line, with_lines_after

NO_FILE = "there is no such file"


def groups(*shares: str, more: str = "") -> list[str]:
    """Return the lines of groups of one kind of device with these shares."""
    entries = [f"    - {{device: sbc_pi4, network: dsl, share: {share}{more}}}" for share in shares]
    return ["  groups:", *entries]


FLEETS = [
    case("both forms", with_lines_after(9, "  devices: {sbc_pi4: 100%}", *groups("100%")),
         "s.yaml:9:3: fleet.mix: 'groups' says which devices are on which networks; leave out 'mix' or",
         "s.yaml:10:3: fleet.devices: 'groups' says which"),
    case("shares of groups", with_line(9, *groups("60%", "50%")),
         "s.yaml:10:5: fleet.groups: the shares sum to 110%; make them sum to 100%"),
    case("no groups", with_line(9, "  groups: []"),
         "s.yaml:9:11: fleet.groups: the shares sum to 0%; make them sum to 100%"),
    case("too many groups", with_line(9, *groups(*["0.390625%"] * 256)),
         "s.yaml:10:5: fleet.groups: 256 are too many; write 255 or fewer"),
    case("key missing in a group", with_line(9, "  groups:", "    - {device: sbc_pi4, share: 100%}"),
         "s.yaml:10:7: fleet.groups[0].network: missing"),
    case("unknown profiles of a group",
         with_line(9, "  groups:", "    - {device: sbc_pi44, network: wifi_hom, availability: on, share: 1}"),
         "s.yaml:10:16: fleet.groups[0].device: unknown device 'sbc_pi44'",
         "s.yaml:10:35: fleet.groups[0].network: unknown network 'wifi_hom'",
         "s.yaml:10:59: fleet.groups[0].availability: unknown availability 'on'",
         hint="did you mean 'sbc_pi4'?"),
    case("missing trace of a group", with_line(9, *groups("100%", more=", link_trace: t.csv")),
         f"s.yaml:10:64: fleet.groups[0].link_trace: {NO_FILE}"),
    case("trace of a group that is none", with_line(9, *groups("100%", more=", link_trace: t.yaml")),
         "s.yaml:10:64: fleet.groups[0].link_trace: ", t="down\n"),
    case("trace of the fleet that is none", with_lines_after(9, "  link_trace: t.yaml"),
         "s.yaml:10:15: fleet.link_trace: ", t="down\n"),
    case("class that no group has", with_line(9, *groups("100%"))
         .replace("round.completed: [rate == 100%]", "device.latency{class=sbc_pi5}: [p95 < 9 s]"),
         's.yaml:19:3: thresholds."device.latency{class=sbc_pi5}": no device of the fleet has class',
         hint="did you mean 'sbc_pi4'?"),
    case("unknown part of an availability",
         with_lines_after(9, "  availability: {kind: combined, of: [always_on, flaky]}"),
         "s.yaml:10:50: fleet.availability.of[1]: unknown availability 'flaky'"),
    case("one part of an availability",
         with_lines_after(9, "  availability: {kind: combined, of: [always_on]}"),
         "s.yaml:10:38: fleet.availability.of: name two profiles or more"),
    case("combined profiles combined",
         with_lines_after(9, "  availability: {kind: combined, of: [always_on, a]}",
                          "  profiles: [mine.yaml]"),
         "s.yaml:10:38: fleet.availability.of: 'a' is a combined profile itself; name its parts: always_on",
         mine="availability:\n  a: {kind: combined, of: [always_on, flaky_mobile]}\n"),
    case("regions of groups",
         with_line(9, *groups("50%", more=", availability: regional_outage"),
                   *groups("50%", more=", availability: a")[1:], "  profiles: [mine.yaml]"),
         "s.yaml:11:65: fleet.groups[1].availability: 'a' has 3 regions, another group 8; use one number",
         mine="availability:\n  a: {like: regional_outage, regions: 3, sources: assumption}\n"),
    case("unknown part in a profile", with_lines_after(9, "  profiles: [mine.yaml]"),
         "mine.yaml:2:28: availability.a.of[0]: unknown availability 'flaky'",
         "mine.yaml:3:39: availability.b.of[1]: 'c' is a combined profile itself; name its parts",
         mine="availability:\n  a: {kind: combined, of: [flaky, always_on]}\n"
         "  b: {kind: combined, of: [always_on, c]}\n  c: {kind: combined, of: [always_on, flaky_mobile]}\n"),
    case("missing trace in a profile", with_lines_after(9, "  profiles: [mine.yaml]"),
         "mine.yaml:2:32: networks.a.link_trace: ",
         mine="networks:\n  a: {like: 4g_uk, link_trace: gone.csv}\n"),
    case("trace of another kind in a profile", with_lines_after(9, "  profiles: [mine.yaml]"),
         "mine.yaml:2:39: networks.a.link_trace.kind: Input should be 'mahimahi'",
         mine="networks:\n  a: {like: 4g_uk, link_trace: {kind: pcap, down: d, up: u, rtt: 5 ms}}\n"),
]  # fmt: skip


@pytest.mark.parametrize("malformed", FLEETS, ids=lambda malformed: malformed.name)
def test_fleets(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)
