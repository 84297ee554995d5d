"""What ``recfleet show`` says of secure sums and privacy, and that it is still the same scenario."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario.load import load
from edge.privacy import accounting

SHIPPED = Path(__file__).parents[2] / "scenarios"
SCENARIO = """\
format: 2
data: {source: synthetic-ratings, users: 300, items: 80, ratings_per_user: 20}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, upload: dense}
rounds: {count: 3, cohort: 100, deadline: 60 s}
"""
LARGEST = 2**31 - 1


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *added: str, uniform: bool = False) -> list[str]:
    """Return what is shown behind a scenario, a line each, and check that what is shown loads as the same."""
    file = folder / "s.yaml"
    text = SCENARIO.replace("dense}", "dense, weighting: uniform}") if uniform else SCENARIO
    if any(line.startswith("phases") for line in added):
        text = text.replace("count: 3, ", "")
    file.write_text(text + "".join(f"{line}\n" for line in added), encoding="utf-8")
    return shown_of(file, folder, capsys)


def shown_of(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert execute(["show", str(file)]) == 0
    output = capsys.readouterr().out
    again = folder / "again.yaml"
    again.write_text(output, encoding="utf-8")
    before, after = load(file, references=False), load(again, references=False)
    assert after.scenario == before.scenario
    assert after.hash == before.hash
    lines = output.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[len(lines) - len(comments) :] == comments
    return [line.removeprefix("# ") for line in comments]


def test_a_quorum_is_no_number_of_contributors_where_some_report_in_the_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    text = SCENARIO.replace("ratings_per_user: 20", "ratings_per_user: 20, features: {kind: synthetic}")
    text = text.replace("algorithm: fedrecon", "algorithm: fedmmf, mask: {kind: zero-order}")
    text = text.replace("cohort: 100", "cohort: 100, quorum: 80%").replace(", upload: dense", "")
    shielded = "{test: recovery, at_most: 40%}"
    section = f"{{mode: secagg-plus, min_contributors: 20, shielded: {shielded}}}"
    file.write_text(f"{text}secure_aggregation: {section}\n", encoding="utf-8")
    lines = shown_of(file, tmp_path, capsys)
    assert lines[2:4] == [
        "  a sum needs 20 contributors of 100; fewer are never revealed",
        "  beside it, devices whose mask passes report in the clear: at most 0.4 recovered within 0.5 stars",
    ]


def test_in_the_clear_there_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(tmp_path, capsys) == []
    assert shown(tmp_path, capsys, "secure_aggregation: {mode: off}") == []


def test_graph_contributors_and_why_no_sum_wraps_around(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(tmp_path, capsys, "secure_aggregation: {mode: active, clip: 2, examples_max: 50}")
    steps = LARGEST // (100 * 50)
    assert lines == [
        "secure aggregation: active, real cryptography, up to 100 devices a round",
        # A published table has these for a hundred devices, a tenth corrupt, a tenth dropping out.
        "  graph: k = 32 neighbours each, t = 22 of 33 shares rebuild a secret "
        "(10% corrupt, 10% dropping out)",
        "  a sum needs 12 contributors of 100; fewer are never revealed",
        f"  ring of 32 bits: {steps} steps up to the clip of 2, weights up to 50",
        f"  no sum can wrap around: 100 · 50 · {steps} = {100 * 50 * steps}, of {LARGEST} at most",
        f"  rounding errs by less than {100 * 2 / steps:.3g} on an element of a sum",
        "  holds against a coordinator that lies, with up to 10% of a round's devices corrupt",
    ]


@pytest.mark.parametrize(
    ("settings", "graph", "needed"),
    [
        # Everybody is everybody's neighbour: more than half of a hundred and ten corrupt ones.
        ("mode: secagg", "k = 99 neighbours each, t = 56 of 100 shares", 12),
        ("mode: secagg-plus, corrupt: 5%, dropout: 5%", "k = 18 neighbours each, t = 13 of 19 shares", 7),
        ("mode: secagg-plus, dropout: 30%", "k = 72 neighbours each, t = 42 of 73 shares", 12),
        (
            "mode: secagg-plus, neighbours: 20, threshold: 16",
            "k = 20 neighbours each, t = 16 of 21 shares",
            12,
        ),
        ("mode: secagg-plus, min_contributors: 30", "k = 32 neighbours each, t = 22 of 33 shares", 30),
    ],
)
def test_other_graphs(
    settings: str, graph: str, needed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(tmp_path, capsys, f"secure_aggregation: {{{settings}}}")
    assert lines[1].startswith(f"  graph: {graph} rebuild a secret (")
    assert lines[2] == f"  a sum needs {needed} contributors of 100; fewer are never revealed"
    assert lines[-1] == "  gives nothing against a coordinator that lies; `mode: active` does"


def test_an_unsafe_graph_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = "mode: secagg-plus, neighbours: 2, threshold: 2, unsafe: true"
    lines = shown(tmp_path, capsys, f"secure_aggregation: {{{written}}}")
    assert lines[1].startswith("  graph: k = 2 neighbours each, t = 2 of 3 shares rebuild a secret (")
    assert lines[2] == "  UNSAFE: the graph is not held against the corrupt devices, which may expose others"


def test_a_ring_of_64_bits_has_the_steps_of_a_float(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(tmp_path, capsys, "secure_aggregation: {mode: secagg-plus, bits: 64}")
    # Beyond 2^53 a float64 has no finer ones.
    steps = 2**53 // 1000
    assert f"  ring of 64 bits: {steps} steps up to the clip of 1, weights up to 1000" in lines
    assert f"100 · 1000 · {steps} = {100 * 1000 * steps}, of {2**63 - 1} at most" in lines[4]


def test_ciphertexts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(tmp_path, capsys, "secure_aggregation: {mode: ckks, crypto: modelled, min_contributors: 7}")
    assert lines[0] == "secure aggregation: ckks, modelled cryptography, one key that all devices share"
    assert "a sum needs 7 contributors" in lines[1]
    # The largest power of two whose sums stay exact: 100 devices of weight 1000 within 2^44.
    assert f"rounded to {2**27} steps up to the clip; weights up to 1000, up to 100 devices" in lines[2]


def test_phases_that_sum_alike_are_told_once_and_others_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(
        tmp_path,
        capsys,
        "secure_aggregation: {mode: secagg-plus}",
        "phases:",
        "  - {name: a, rounds: 1}",
        "  - {name: b, rounds: 1, secure_aggregation: {mode: secagg-plus, dropout: 30%}}",
        "  - {name: c, rounds: 1, secure_aggregation: {mode: secagg-plus, stage_deadlines: {unmask: 1 s}}}",
        "  - {name: d, rounds: 1, secure_aggregation: {mode: off}}",
    )
    graphs = [line.split(" neighbours")[0] for line in lines if line.startswith("  graph")]
    assert graphs == ["  graph: k = 32", "  graph: k = 72"]
    assert len(lines) == 14


def private(mechanism: str, multiplier: float) -> str:
    settings = f"clip_norm: 0.5, noise_multiplier: {multiplier:g}, accounting: false"
    return f"privacy: {{mechanism: {mechanism}, {settings}}}"


def test_shares_of_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(
        tmp_path,
        capsys,
        "secure_aggregation: {mode: secagg-plus, min_contributors: 59}",
        private("distributed-discrete-gaussian", 2),
        uniform=True,
    )
    # Ten of the 59 may be corrupt. Each of the others adds a share of the variance.
    share = 2 * 0.5 / math.sqrt(49)
    assert lines[-2] == "privacy: distributed-discrete-gaussian, updates clipped to a norm of 0.5"
    assert lines[-1] == (
        f"  every device adds noise of {share:.4g}, so that 49 honest ones, the fewest in a sum, add 1"
    )
    (arithmetic,) = [line for line in lines if "wrap around" in line]
    found = re.fullmatch(
        r"  no sum can wrap around: 100 · \(1 · (\d+) \+ (\d+) of noise\) = (\d+), of (\d+) at most",
        arithmetic,
    )
    assert found is not None
    steps, noise, whole, most = map(int, found.groups())
    assert most == LARGEST
    assert whole == 100 * (steps + noise) <= LARGEST < 100 * (steps + 1 + noise + math.ceil(12 * share / 0.5))
    # Room for twelve standard deviations of a share.
    assert noise == math.ceil(12 * share / 0.5 * steps)


def test_noise_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mechanism, told in (
        ("central-gaussian", "the coordinator adds noise of 0.75 to every element of a sum"),
        ("local-gaussian", "every device adds noise of 0.75 to every element of its update"),
    ):
        lines = shown(tmp_path, capsys, private(mechanism, 1.5), uniform=True)
        by_clock = "on the real clock, and drawn in floating point on the virtual one"
        assert lines == [
            f"privacy: {mechanism}, updates clipped to a norm of 0.5",
            f"  noise is discrete, on a grid, {by_clock}",
            f"  {told}",
        ]


@pytest.mark.parametrize("name", ["secagg_basic", "secagg_active", "secagg_dropouts", "distributed_dp"])
def test_shipped_scenarios_show_their_plan(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "distributed_dp" and not accounting.available():
        pytest.skip("needs the extra dp")
    lines = shown_of(SHIPPED / f"{name}.yaml", tmp_path, capsys)
    assert sum("wrap around" in line for line in lines) == (2 if name == "secagg_active" else 1)
