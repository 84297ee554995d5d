from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from malformed import Malformed, case, check_refused, option
from scenario_files import BASE, LINES, with_line, with_lines_after, write_files

from coordinator.scenario.load import ScenarioError, load
from device_profiles.documents import MAX_FILE_BYTES

NO_FILE = "there is no such file"
EMPTY = "s.yaml:1:1: the file is empty; write 'key: value' lines"

UNREADABLE = [
    case("missing file", None, f"s.yaml:1:1: {NO_FILE}"),
    case("empty file", b"", EMPTY),
    case("comments only", "# nothing here\n", EMPTY),
    case("huge file", BASE + "#" * MAX_FILE_BYTES, "s.yaml:1:1: larger than 1048576 bytes (1 MiB)"),
    case("UTF-16", BASE.encode("utf-16"), "s.yaml:1:1: the file is in UTF-16 or UTF-32; save it as UTF-8"),
    case("UTF-16 without mark", BASE.encode("utf-16-le"), "s.yaml:1:2: character U+0000 does not belong"),
    case("UTF-32", BASE.encode("utf-32"), "s.yaml:1:1: the file is in UTF-16 or UTF-32; save it as UTF-8"),
    case("Latin-1", with_line(2, "title: café").encode("latin-1"), "s.yaml:2:11: byte 0xe9 is not UTF-8"),
    case("byte order mark", b"\xef\xbb\xbf" + BASE.encode(), "s.yaml:1:1: the file starts with a byte order"),
    case("NUL byte", with_line(2, "seed: 7\0"), "s.yaml:2:8: character U+0000 does not belong"),
    case("bell character", with_line(2, "seed: \a7"), "s.yaml:2:7: character U+0007 does not belong"),
    case("a pickle", b"\x80\x04\x95\x10\x00\x00\x00", "s.yaml:1:1: byte 0x80 is not UTF-8"),
    case("a gzip file", b"\x1f\x8b\x08\x00\x00\x00", "s.yaml:1:2: byte 0x8b is not UTF-8"),
    case("list at the root", "- format: 2\n", "s.yaml:1:1: the file holds a list where a mapping belongs"),
    case("text at the root", "quickstart\n", "s.yaml:1:1: the file holds a single value"),
    case("two documents", BASE + "---\n" + BASE, "s.yaml:19:1: a second document starts here"),
    case("tab as indentation", with_line(5, "\tusers: 200"), "s.yaml:5:1: data: a tab cannot indent"),
    case("tab before a value", with_line(2, "seed: \t- 7"), "s.yaml:2:7: seed: a tab cannot indent"),
    case("bracket left open", with_line(18, "  round.completed: [rate == 100%"),
         's.yaml:19:1: thresholds."round.completed"[1]: not valid YAML: expected'),
    case("quote left open", with_line(2, 'title: "x'),
         "s.yaml:19:1: title: not valid YAML: found unexpected"),
    case("wrong indentation", with_line(5, "   users: 200"), "s.yaml:5:9: data: a ':' is not allowed"),
    case("colon in a value", with_line(2, "title: a: b"), "s.yaml:2:9: a ':' is not allowed here"),
    case("at sign", with_line(2, "title: @x"), "s.yaml:2:8: title: a value cannot start with '@'"),
    case("unknown escape", with_line(2, 'title: "\\q"'), "s.yaml:2:10: title: not valid YAML: found unknown"),
    case("tag that runs code", with_line(2, "seed: !!python/object/apply:os.system [ls]"),
         "s.yaml:2:7: seed: tags such as"),
    case("anchor", with_line(2, "seed: &s 7"), "s.yaml:2:7: seed: anchors ('&name') are not supported"),
    case("alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "s.yaml:1:4: a: anchors ('&name')"),
    case("nesting bomb", "a: " + "[" * 10_000, f"s.yaml:1:35: a{'[0]' * 31}: nested deeper than 32 levels"),
    case("breadth bomb", "a: [" + "1,\n " * 60_000 + "1]\n",
         "s.yaml:49998:2: a[49997]: more than 50000 values"),
    case("endless line", with_line(2, "title: " + "x" * 20_000), "s.yaml:2:1: a line of more than 16384"),
    case("directive", "%YAML 1.1\n---\n" + BASE,
         "s.yaml:2:1: directives ('%YAML', '%TAG') are not supported"),
    case("merge key", with_line(2, "<<: {seed: 7}"), 's.yaml:2:1: "<<": unknown key'),
    case("list as key", with_line(2, "? [a]", ": 1"), "s.yaml:2:3: a key must be plain text"),
    case("number as key", with_line(2, "1: 2"), "s.yaml:2:1: 1: unknown key"),
    case("duplicate key", with_line(7, "  users: 300"),
         "s.yaml:7:3: data.users: duplicate key; it was first"),
    case("duplicate section", BASE + "rounds: {count: 3, cohort: 4}\n", "s.yaml:19:1: rounds: duplicate key"),
]  # fmt: skip

VALUES = [
    case("no unit", with_line(16, "  deadline: 45"),
         "s.yaml:16:13: rounds.deadline: '45' has no unit; write '45 s'"),
    case("wrong unit", with_line(16, "  deadline: 45 Mbit/s"),
         "s.yaml:16:13: rounds.deadline: '45 Mbit/s' is a rate, not a duration; write '45 s'"),
    case("unknown unit", with_line(16, "  deadline: 45 sek"),
         "s.yaml:16:13: rounds.deadline: '45 sek': unknown"),
    case("minutes or milli", with_line(16, "  deadline: 5 m"),
         "s.yaml:16:13: rounds.deadline: '5 m': 'm' could"),
    case("clock time", with_line(16, "  deadline: 1:30"),
         "s.yaml:16:13: rounds.deadline: '1:30' is not a dur"),
    case("zero deadline", with_line(16, "  deadline: 0 s"), "s.yaml:16:13: rounds.deadline: '0 s' is zero"),
    case("negative deadline", with_line(16, "  deadline: -45 s"),
         "s.yaml:16:13: rounds.deadline: '-45 s' is negative"),
    case("NaN deadline", with_line(16, "  deadline: nan s"),
         "s.yaml:16:13: rounds.deadline: 'nan s' is not a"),
    case("infinite deadline", with_line(16, "  deadline: .inf"),
         "s.yaml:16:13: rounds.deadline: '.inf' is not"),
    case("overflowing deadline", with_line(16, "  deadline: 1e999 s"),
         "s.yaml:16:13: rounds.deadline: '1e999 s' is too large"),
    case("size for a rate", with_lines_after(2, "coordinator: {up_rate: 50 Mbit}"),
         "s.yaml:3:24: coordinator.up_rate: '50 Mbit' is a size in bits, not a rate; write '50 Mbit/s'"),
    case("bits or bytes", with_lines_after(2, "coordinator: {up_rate: 50 mbps}"),
         "s.yaml:3:24: coordinator.up_rate: '50 mbps': the prefix and the case"),
    case("K for kilo", with_lines_after(2, "limits: {frame_bytes: 64 KB}"),
         "s.yaml:3:23: limits.frame_bytes: '64 KB': 'K' is not a prefix"),
    case("negative number", with_line(15, "  cohort: -5"),
         "s.yaml:15:11: rounds.cohort: '-5' is too small; write 1 or more"),
    case("half a device", with_line(15, "  cohort: 50.5"),
         "s.yaml:15:11: rounds.cohort: '50.5' is not a whole number; write one such as '50'"),
    case("exponent for whole", with_line(15, "  cohort: 1e1"),
         "s.yaml:15:11: rounds.cohort: '1e1' is not a whole number; write one such as '10'"),
    case("NaN number", with_lines_after(7, "  noise_sd: .nan"),
         "s.yaml:8:13: data.noise_sd: '.nan' is not a number"),
    case("NaN learning rate", with_line(12, "  learning_rate: nan"),
         "s.yaml:12:18: learning.learning_rate: 'nan' is not a number"),
    case("infinite learning rate", with_line(12, "  learning_rate: inf"),
         "s.yaml:12:18: learning.learning_rate: 'inf' is not a number"),
    case("decimal comma", with_line(12, "  learning_rate: 0,5"),
         "s.yaml:12:18: learning.learning_rate: '0,5' is not a number; write '0.5'"),
    case("yes for true", with_lines_after(2, "connection: {tls: yes}"),
         "s.yaml:3:19: connection.tls: 'yes' is not 'true' or 'false'; write 'true'"),
    case("fraction above one", with_lines_after(7, "  split: {kind: ratio, test: 20}"),
         "s.yaml:8:30: data.split.test: '20' is more than the whole; write '20%'"),
    case("word not in the list", with_lines_after(16, "  selection: randm"),
         "s.yaml:17:14: rounds.selection: 'randm' is none of: random, availability-aware, po",
         hint="did you mean 'random'? or load it by --plugin FILE"),
    case("list for a value", with_line(15, "  cohort: [50]"),
         "s.yaml:15:11: rounds.cohort: a list where a value belongs"),
    case("mapping for a value", with_line(15, "  cohort: {of: 50}"),
         "s.yaml:15:11: rounds.cohort: a mapping where a value belongs"),
    case("value for a mapping", with_line(2, "connection: tls"),
         "s.yaml:2:13: connection: 'tls' where a mapping belongs"),
    case("list for a mapping", with_line(2, "connection: [tls]"),
         "s.yaml:2:13: connection: a list where a mapping belongs"),
    case("value for a list", with_line(2, "phases: calm"), "s.yaml:2:9: phases: 'calm' where a list belongs"),
    case("null in a list", with_line(2, "phases: [null]"), "s.yaml:2:10: phases[0]: nothing where a mapping"),
    case("unknown format", with_line(1, "format: 3"),
         "s.yaml:1:9: format: '3' is a format that this version does not know; write '2'"),
    case("quorum as fraction", with_lines_after(16, "  quorum: 0.8"),
         "s.yaml:17:11: rounds.quorum: '0.8' is not a number of reports"),
    case("target without value", with_lines_after(16, "  target: model.rmse"),
         "s.yaml:17:11: rounds.target: 'model.rmse' is not a target"),
    case("sample of users", with_line(2, "evaluation: {users: some}"),
         "s.yaml:2:21: evaluation.users: 'some' is neither 'all' nor a positive whole number"),
]  # fmt: skip


def with_table(setting: str, source: str = "table") -> str:
    """Return the scenario with ratings from a file that is there, and a setting in line 6."""
    lines = [
        *BASE.splitlines()[:3],
        f"  source: {source}",
        "  path: .",
        f"  {setting}",
        *BASE.splitlines()[7:],
    ]
    return "\n".join(lines) + "\n"


KEYS = [
    case("unknown key", with_line(16, "  deadlin: 45 s"), "s.yaml:16:3: rounds.deadlin: unknown key",
         hint="did you mean 'deadline'?"),
    case("unknown section", with_line(2, "sed: 7"),
         "s.yaml:2:1: sed: unknown key", hint="did you mean 'seed'?"),
    case("unknown nested key", with_line(12, "  reconstruction: {method: ridge, lambda: 1}"),
         "s.yaml:12:35: learning.reconstruction.lambda: unknown key"),
    case("key of another source", with_line(5, "  samples_per_client: 5"),
         "s.yaml:5:3: data.samples_per_client: unknown key"),
    case("unknown baseline", with_line(2, "baseline: same-seed-without-fault"),
         "s.yaml:2:11: baseline: 'same-seed-without-fault' is none of: same-seed-without-faults"),
    case("format missing", with_line(1), "s.yaml:1:1: format: missing; write 'format: 2'"),
    case("cohort missing", with_line(15), "s.yaml:13:1: rounds.cohort: missing; write 'cohort: ...'"),
    case("source missing", with_line(4), "s.yaml:3:1: data.source: missing; write one of: synthetic-ratings"),
    case("source unknown", with_line(4, "  source: synthetic-rating"),
         "s.yaml:4:11: data.source: 'synthetic-rating' is not one of: synthetic-ratings",
         hint="did you mean 'synthetic-ratings'? or load it by --plugin FILE"),
    case("algorithm unknown", with_line(11, "  algorithm: fedrecom"),
         "s.yaml:11:14: learning.algorithm: 'fedrecom' is not one of: fedrecon",
         hint="did you mean 'fedrecon'? or load it by --plugin FILE"),
    case("length missing", with_line(14), "s.yaml:13:1: rounds.count: missing; write the number of rounds"),
    case("fleet without networks", with_line(9, "  devices: {sbc_pi4: 100%}"),
         "s.yaml:8:1: fleet.networks: missing; write it, or name a fleet with 'mix'"),
]  # fmt: skip

TABLES = [
    case("scale upside down", with_table("scale: [5, 1]"),
         "s.yaml:6:10: data.scale: the lowest rating is not below the highest; write it first"),
    case("no encoding", with_table("encoding: hex"),
         "s.yaml:6:13: data.encoding: 'hex' is no encoding of text; write one such as latin-1"),
    case("delimiter with a quote", with_table("delimiter: \'x\"\'"),
         "s.yaml:6:14: data.delimiter: \'x\"\' is no delimiter; write \'tab\', \'space\' or up to 8 "
         "characters"),
    case("columns of another role", with_table("columns: {usr: a}"),
         "s.yaml:6:13: data.columns.usr: unknown key", hint="did you mean 'user'?"),
    case("columns of another format", with_table("columns: {user: a}", "lastfm"),
         "s.yaml:6:3: data.columns: unknown key"),
    case("published split of a core", with_table(
        "min_user: 5\n  split: {kind: published-leave-one-out}", "movielens-1m"),
        "s.yaml:6:3: data.min_user: the published split has all ratings; leave it out"),
]  # fmt: skip

CONSISTENCY = [
    case("quorum above cohort", with_lines_after(16, "  quorum: 51"),
         "s.yaml:17:11: rounds.quorum: 51 is more than the cohort of 50; write 50 or less"),
    case("too few invited", with_lines_after(16, "  over_select: 90%"),
         "s.yaml:17:16: rounds.over_select: 90% invites fewer than wanted; write 100% or more"),
    case("cohort above clients", with_line(15, "  cohort: 201"),
         "s.yaml:15:11: rounds.cohort: 201 devices, but the data has 200 clients; write 200 or less"),
    case("more invited than clients", with_line(15, "  cohort: 180", "  over_select: 120%"),
         "s.yaml:16:16: rounds.over_select: 216 devices would be invited, but the data has 200 clients"),
    case("cohort above grouped clients", with_lines_after(7, "  users_per_client: 10"),
         "s.yaml:16:11: rounds.cohort: 50 devices, but the data has 20 clients; write 20 or less"),
    case("nothing left to train on",
         with_lines_after(7, "  split: {kind: ratio, test: 60%, validation: 40%}"),
         "s.yaml:8:47: data.split.validation: 100% of the data is kept back and none trains; write less"),
    case("more ratings than items", with_line(7, "  ratings_per_user: 200"),
         "s.yaml:7:21: data.ratings_per_user: at most half of the 300 items"),
    case("grouping of single users", with_lines_after(7, "  grouping: by-activity"),
         "s.yaml:8:3: data.grouping: a client holds one user"),
    case("phases and count", with_lines_after(2, "phases: [{name: a, rounds: 5}]"),
         "s.yaml:15:10: rounds.count: 20 is not the 5 rounds of the phases; leave count out"),
    case("two phases of a name", with_line(2, "phases: [{name: a, rounds: 5}, {name: a, rounds: 15}]"),
         "s.yaml:2:39: phases[1].name: a second phase 'a'; rename one"),
    case("phase without length", with_line(2, "phases: [{name: a}]"),
         "s.yaml:2:10: phases[0].rounds: missing; write the phase's length as 'rounds' or 'time'"),
    case("phase with two lengths", with_line(2, "phases: [{name: a, rounds: 5, time: 5 s}]"),
         "s.yaml:2:31: phases[0].time: contradicts rounds; write one of the two"),
    case("shares below the whole", with_lines_after(9, "  devices: {sbc_pi4: 50%, sbc_pi5: 40%}"),
         "s.yaml:10:12: fleet.devices: the shares sum to 90%; make them sum to 100%"),
    case("method and data do not fit",
         with_line(11, "  algorithm: linear-regression").replace("  factors: 8\n", ""),
         "s.yaml:11:14: learning.algorithm: 'linear-regression' learns from regression"),
    case("validation without any", with_line(2, "evaluation: {on: validation}"),
         "s.yaml:2:18: evaluation.on: the split keeps nothing back for validation"),
    case("another number of negatives than published",
         "\n".join((*LINES[:3], "  {source: movielens-1m, path: x, split: {kind: published-leave-one-out}}",
                    *LINES[7:], "evaluation: {ranking: {negatives: 50}}")),
         "s.yaml:16:35: evaluation.ranking.negatives: the published split has 99 negatives a user; write"
         " that, or 'full'"),
    case("a split published for other data", with_lines_after(4, "  split: {kind: published-leave-one-out}"),
         "s.yaml:5:17: data.split.kind: the published split is one of 'movielens-1m', not of"
         " 'synthetic-ratings'; write 'leave-one-out'"),
    case("sampled negatives without one held-out rating",
         with_line(2, "evaluation: {ranking: {negatives: 99}}"),
         "s.yaml:2:35: evaluation.ranking.negatives: sampled negatives rank one held-out rating a user, and"
         " split 'ratio' does not hold back one each; write 'full', or 'kind: leave-one-out' in data.split"),
    case("too many time zones", with_lines_after(9, "  time_zones: 25"),
         "s.yaml:10:15: fleet.time_zones: 25 is more than the earth has; write 24 or less"),
    case("shrinking back-off", with_lines_after(16, "  retry: {factor: 0.5}"),
         "s.yaml:17:19: rounds.retry.factor: 0.5 would shrink the pauses; write 1 or more"),
]  # fmt: skip

REFERENCES = [
    case("unknown fleet", with_line(9, "  mix: global_androd_2024"),
         "s.yaml:9:8: fleet.mix: unknown fleet 'global_androd_2024'",
         hint="did you mean 'global_android_2024'?"),
    case("unknown device", with_lines_after(9, "  devices: {sbc_pi44: 100%}"),
         "s.yaml:10:13: fleet.devices.sbc_pi44: unknown device 'sbc_pi44'", hint="did you mean 'sbc_pi4'?"),
    case("unknown network", with_lines_after(9, "  networks: {wifi_hom: 100%}"),
         "s.yaml:10:14: fleet.networks.wifi_hom: unknown network 'wifi_hom'",
         hint="did you mean 'wifi_home'?"),
    case("unknown availability", with_lines_after(9, "  availability: alway_on"),
         "s.yaml:10:17: fleet.availability: unknown availability 'alway_on'",
         hint="did you mean 'always_on'?"),
    case("unknown kind of availability", with_lines_after(9, "  availability: {kind: diurnale}"),
         "s.yaml:10:24: fleet.availability.kind: 'diurnale' is not one of: always",
         hint="did you mean 'diurnal'?"),
    case("impossible availability",
         with_lines_after(9, "  availability: {kind: diurnal, mean_available: 90%, peak_to_trough: 4, "
                             "peak_local_hour: 2}"),
         "s.yaml:10:49: fleet.availability.mean_available: 0.9"),
    case("missing data", with_line(4, "  source: movielens-100k", "  path: gone/u.data")
         .replace("  users: 200\n  items: 300\n  ratings_per_user: 30\n", ""),
         "s.yaml:5:9: data.path: there is no such file or folder", hint="name one with: --set data.path=..."),
    case("missing catalogue file", with_lines_after(9, "  profiles: [mine.yaml]"),
         f"s.yaml:10:14: fleet.profiles[0]: {NO_FILE}"),
    case("broken catalogue file", with_lines_after(9, "  profiles: [mine.yaml]"),
         "mine.yaml:1:4: a: a value cannot start with '@'", mine="a: @\n"),
    case("missing link trace", with_lines_after(9, "  link_trace: train.csv"),
         f"s.yaml:10:15: fleet.link_trace: {NO_FILE}"),
    case("missing Mahimahi trace",
         with_lines_after(9, "  link_trace: {kind: mahimahi, down: d, up: u, rtt: 5 ms}"),
         f"s.yaml:10:38: fleet.link_trace.down: {NO_FILE}", f"s.yaml:10:45: fleet.link_trace.up: {NO_FILE}"),
]  # fmt: skip

EXTENDS = [
    case("parent missing", "extends: base.yaml\n", f"s.yaml:1:10: extends: {NO_FILE}"),
    case("parent misspelt", "extends: bsae.yaml\n", f"s.yaml:1:10: extends: {NO_FILE}",
         hint="did you mean 'base.yaml'?", base=BASE),
    case("extends itself", "extends: s.yaml\n" + BASE,
         "s.yaml:1:10: extends: the scenario extends itself: s.yaml -> s.yaml"),
    case("extends in a circle", "extends: a.yaml\n",
         "b.yaml:1:10: extends: the scenario extends itself: s.yaml -> a.yaml -> b.yaml -> s.yaml",
         a="extends: b.yaml\n", b="extends: s.yaml\n"),
    case("chain too long", "extends: p1.yaml\n", "p7.yaml:1:10: extends: more than 8 files extend each other",
         **{f"p{n}": f"extends: p{n + 1}.yaml\n" for n in range(1, 9)}),
    case("two parents", "extends: [a.yaml, b.yaml]\n" + BASE,
         "s.yaml:1:10: extends: one file name belongs here"),
    case("error in the parent", "extends: base.yaml\nseed: 8\n",
         "base.yaml:16:13: rounds.deadline: '45' has no unit; write '45 s'",
         base=with_line(16, "  deadline: 45")),
    case("broken parent", "extends: base.yaml\n", "base.yaml:2:7: seed: a value cannot start with '@'",
         base=with_line(2, "seed: @")),
    case("inherited key that does not apply", "extends: base.yaml\ndata: {source: synthetic-regression}\n",
         "base.yaml:5:3: data.users: unknown key", "base.yaml:6:3: data.items: unknown key",
         "base.yaml:7:3: data.ratings_per_user: unknown key", base=BASE),
    case("required key removed", "extends: base.yaml\nrounds: {cohort: null}\n",
         "s.yaml:2:1: rounds.cohort: missing; write 'cohort: ...'", base=BASE),
]  # fmt: skip

THRESHOLDS = [
    case("unknown metric", with_line(18, "  round.complete: [rate == 100%]"),
         's.yaml:18:3: thresholds."round.complete": unknown metric \'round.complete\'',
         hint="did you mean 'round.completed'?"),
    case("unknown tag", with_line(18, "  round.completed{phse=a}: [rate == 100%]"),
         's.yaml:18:3: thresholds."round.completed{phse=a}": round.completed has no tag \'phse\'',
         hint="did you mean 'phase'?"),
    case("unknown phase", with_line(18, "  round.completed{phase=a}: [rate == 100%]"),
         's.yaml:18:3: thresholds."round.completed{phase=a}": unknown phase \'a\''),
    case("network not in the fleet", with_line(18, "  device.latency{network=dsl}: [max < 5 s]"),
         's.yaml:18:3: thresholds."device.latency{network=dsl}": no device of the fleet has network \'dsl\''),
    case("unit of a threshold", with_line(18, "  round.duration: [p95 < 20]"),
         's.yaml:18:20: thresholds."round.duration"[0]: \'20\' has no unit; write \'20 s\''),
    case("aggregation of a metric", with_line(18, "  round.duration: [rate < 20 s]"),
         's.yaml:18:20: thresholds."round.duration"[0]: this metric has no \'rate\''),
    case("percentile above 100", with_line(18, "  round.duration: [p101 < 20 s]"),
         's.yaml:18:20: thresholds."round.duration"[0]: \'p101\' is no percentile'),
    case("no operator", with_line(18, "  round.completed: [rate 100%]"),
         's.yaml:18:21: thresholds."round.completed"[0]: \'rate 100%\' is not an expectation'),
    case("baseline that is not run", with_line(18, "  round.duration: [p95 < 2.0 * baseline]"),
         's.yaml:18:20: thresholds."round.duration"[0]: compares with a baseline, and the scenario asks',
         hint="write 'baseline: same-seed-without-faults', or compare with a value"),
    case("baseline that is not run, in the long form",
         with_line(18, "  round.duration: [max < 1 s, {expect: p95 < baseline}]"),
         's.yaml:18:40: thresholds."round.duration"[1].expect: compares with a baseline'),
    case("factor of a baseline", with_line(18, "  round.duration: [p95 < 2 s * baseline]"),
         's.yaml:18:20: thresholds."round.duration"[0]: '),
    case("baseline as a target", with_line(16, "  target: model.rmse <= baseline"),
         "s.yaml:16:11: rounds.target: 'baseline' is no figure to reach; write a number, such as '0.92'"),
    case("first value as a target", with_line(16, "  target: model.rmse <= first"),
         "s.yaml:16:11: rounds.target: 'first' is no figure to reach"),
    case("abort that is neither", with_line(18, "  round.duration: [{expect: max < 9 s, abort: yes}]"),
         's.yaml:18:47: thresholds."round.duration"[0].abort: \'yes\' is not a truth value; write \'true\''),
    case("after without abort", with_line(18, "  round.duration: [{expect: max < 9 s, after: 2 rounds}]"),
         's.yaml:18:40: thresholds."round.duration"[0].after: says when a missed threshold ends the run'),
    case("after without unit",
         with_line(18, "  round.duration: [{expect: max < 9 s, abort: true, after: 2}]"),
         's.yaml:18:60: thresholds."round.duration"[0].after: \'2\' is neither rounds nor simulated'),
    case("after a negative time",
         with_line(18, "  round.duration: [{expect: max < 9 s, abort: true, after: -2 s}]"),
         's.yaml:18:60: thresholds."round.duration"[0].after: \'-2 s\' is neither'),
    case("unknown key of an expectation",
         with_line(18, "  round.duration: [{expect: max < 9 s, aborts: true}]"),
         's.yaml:18:40: thresholds."round.duration"[0].aborts: unknown key', hint="did you mean 'abort'?"),
    case("abort at what is measured",
         with_line(18, "  inference.max_error: [{expect: max < 1, abort: true}]"),
         's.yaml:18:34: thresholds."inference.max_error"[0].expect: inference.max_error is measured on this'),
    case("abort without expectation", with_line(18, "  round.duration: [{abort: true}]"),
         's.yaml:18:20: thresholds."round.duration"[0].expect: missing'),
    case("no expectations", with_line(18, "  round.duration: []"),
         's.yaml:18:19: thresholds."round.duration": expectations are a list'),
]  # fmt: skip

OVERRIDES = [
    option("option without value", "--set:1:14: 'rounds.cohort' is not a setting", "rounds.cohort"),
    option("option without path", "--set:1:1: '=5' is not a setting; write it like 'rounds.cohort=50'", "=5"),
    option(
        "bad value in an option",
        "--set:2:17: rounds.deadline: '45' has no unit",
        "seed=3",
        "rounds.deadline=45",
    ),
    option("unknown key in an option", "--set:1:1: rounds.cohrt: unknown key", "rounds.cohrt=5"),
    option("path through a value", "--set:1:1: seed.x: a key is asked of a single value", "seed.x=5"),
    option("index of no entry", "--set:1:1: phases[0]: the list has 0 entries", "phases[0].rounds=5"),
    option("broken YAML in an option", "--set:1:8: phases: not valid YAML", "phases=[{name: a"),
    option(
        "missing file in an option", "--set:1:18: fleet.link_trace: there is no", "fleet.link_trace=gone.csv"
    ),
]  # fmt: skip

CASES = [*UNREADABLE, *VALUES, *KEYS, *TABLES, *CONSISTENCY, *REFERENCES, *EXTENDS, *THRESHOLDS, *OVERRIDES]


@pytest.mark.parametrize("malformed", CASES, ids=lambda malformed: malformed.name)
def test_each_is_refused_at_its_place(malformed: Malformed, tmp_path: Path) -> None:
    check_refused(malformed, tmp_path)


def test_there_are_enough_and_no_two_are_alike() -> None:
    assert len(CASES) >= 60
    assert len({malformed.name for malformed in CASES}) == len(CASES)


def test_all_errors_come_at_once_in_reading_order(tmp_path: Path) -> None:
    text = (
        with_line(5, "  users: -1", "  users: 5", "  itms: 3")
        .replace("60 s", "60")
        .replace("rate ==", "rat ==")
    )
    path = write_files(tmp_path, {"s.yaml": text})
    with pytest.raises(ScenarioError) as caught:
        load(path, ["limits.frame_bytes=64"])
    places = [str(problem.position).removeprefix(f"{tmp_path}{os.sep}") for problem in caught.value.problems]
    assert places == ["s.yaml:5:10", "s.yaml:6:3", "s.yaml:7:3", "s.yaml:18:13", "s.yaml:20:21", "--set:1:20"]
    assert str(caught.value).count("\n    did you mean") == 1


@pytest.mark.slow
def test_ten_thousand_errors_are_cut_short(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"s.yaml": BASE + "".join(f"k{number}: 1\n" for number in range(10_000))})
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert len(caught.value.problems) == 10_000
    assert str(caught.value).endswith("... and 9950 more errors")


PROGRAM = """
import sys
from coordinator.scenario.load import ScenarioError, load
try:
    load(sys.argv[1])
except ScenarioError as error:
    print(error)
"""


@pytest.mark.slow
def test_errors_do_not_depend_on_hash_order(tmp_path: Path) -> None:
    text = with_line(18, "  round.complete: [x]", "  device.latenc: [y]").replace("mix: global", "mix: glbal")
    path = write_files(tmp_path, {"s.yaml": text})
    shown = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1
    assert "unknown metric 'round.complete'" in shown.pop()
