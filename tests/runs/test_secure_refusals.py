"""What keeps updates out of a secure sum: too many examples, small frames or memory, values not finite."""

from pathlib import Path

import pytest
from run_helpers import report_on, rows_of, run_text
from secure_helpers import IDEAL_WIRE, endings_of, secure

from coordinator.run.assembling import assemble
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from edge.homomorphic.config import CIPHERTEXT_BYTES, SLOTS

PHASED = (
    "phases:\n"
    "  - {name: plain, rounds: 1, secure_aggregation: {mode: off}}\n"
    "  - name: masked\n"
    "    rounds: 1\n"
    "    secure_aggregation:\n"
    "      mode: secagg\n"
    "      examples_max: 23\n"
)


def invalid_of(folder: Path, text: str) -> str:
    """Return the one error of a scenario that does not load."""
    file = folder / "s.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    (problem,) = caught.value.problems
    return str(problem)


def refusal_of(folder: Path, text: str) -> str:
    """Return the one error of a scenario that loads and cannot be assembled."""
    file = folder / "s.yaml"
    file.write_text(text)
    loaded = load(file)
    with pytest.raises(ScenarioError) as caught:
        assemble(loaded)
    (problem,) = caught.value.problems
    return str(problem).replace(f"{folder}/", "")


@pytest.mark.parametrize("section", ["mode: secagg", "mode: ckks, crypto: modelled"])
def test_more_examples_than_planned_for_are_refused_with_their_number(section: str, tmp_path: Path) -> None:
    text = secure(f"{section}, examples_max: 23")
    line, column = 8, text.splitlines()[8 - 1].index("23}") + 1
    assert refusal_of(tmp_path, text) == (
        f"s.yaml:{line}:{column}: secure_aggregation.examples_max: a device holds 24 examples, more than the "
        "23 planned for\n    write 24 or more, or limit data.max_ratings_per_user"
    )
    (tmp_path / "s.yaml").write_text(text.replace("examples_max: 23", "examples_max: 24"))
    assert assemble(load(tmp_path / "s.yaml")).secure_sums[""] is not None


def test_in_a_phase_the_refusal_names_the_phase(tmp_path: Path) -> None:
    text = secure("mode: off", more=PHASED).replace("count: 1, ", "")
    line = text.splitlines().index("      examples_max: 23") + 1
    assert refusal_of(tmp_path, text).startswith(
        f"s.yaml:{line}:21: phases[1].secure_aggregation.examples_max: a device holds 24 examples"
    )


@pytest.mark.slow
def test_a_run_on_an_unsafe_graph_is_marked(tmp_path: Path) -> None:
    graph = "mode: secagg-plus, crypto: modelled, neighbours: 4, threshold: 3"
    assert "infeasible: with 4 neighbours each no threshold is safe for 12 devices" in invalid_of(
        tmp_path, secure(f"{graph}, corrupt: 25%")
    )
    outcome = run_text(tmp_path, secure(f"{graph}, corrupt: 25%, unsafe: true"))
    written = [(outcome.directory / name).read_text() for name in ("manifest.json", "summary.json")]
    for text in (*written, report_on(outcome)):
        assert "secagg-plus, modelled cryptography, UNSAFE graph" in text


@pytest.mark.parametrize(
    ("section", "items", "input_bytes"),
    [
        # Four factors and a bias for each item; examples, loss, weight and a one behind them.
        ("mode: secagg", 6000, 4 * (5 * 6000 + 4)),
        ("mode: secagg, bits: 64", 6000, 8 * (5 * 6000 + 4)),
        ("mode: ckks, crypto: modelled", 60, CIPHERTEXT_BYTES),
    ],
)
def test_an_input_above_the_limit_of_a_frame_is_refused(
    section: str, items: int, input_bytes: int, tmp_path: Path
) -> None:
    data = f"source: synthetic-ratings, users: 120, items: {items}, ratings_per_user: 10"
    text = secure(section, data=data, more=f"limits: {{frame_bytes: {input_bytes - 1} B}}\n")
    refused = refusal_of(tmp_path, text)
    assert ": limits.frame_bytes: the largest report has " in refused
    assert refused.startswith("s.yaml:10:23:")
    (tmp_path / "s.yaml").write_text(text.replace(f"{input_bytes - 1} B", f"{2 * input_bytes} B"))
    sums = assemble(load(tmp_path / "s.yaml")).secure_sums[""]
    assert sums is not None
    assert sums.input_bytes == input_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("section", "input_bytes", "ending"),
    [
        # A microcontroller gives an application 100 KiB, of which the work on the update takes 65 KiB.
        ("mode: off", 0, ("completed", None, "none")),
        ("mode: secagg", 4 * 7504, ("completed", None, "none")),
        ("mode: secagg, bits: 64", 8 * 7504, ("failed", "compute", "memory")),
        (
            "mode: ckks, crypto: modelled",
            -(-7504 // SLOTS) * CIPHERTEXT_BYTES,
            ("failed", "compute", "memory"),
        ),
    ],
)
def test_the_memory_of_the_input_counts(
    section: str, input_bytes: int, ending: tuple[str, str | None, str], tmp_path: Path
) -> None:
    outcome = run_text(
        tmp_path,
        secure(
            section,
            data="source: synthetic-ratings, users: 40, items: 1500, ratings_per_user: 10",
            fleet="{devices: {mcu_esp32c3: 100%}, networks: {wifi_home: 100%}}",
            rounds="count: 1, cohort: 12, deadline: 10 min",
        ),
    )
    assert endings_of(outcome) == {ending: 12}
    memory = {row["memory_bytes"] - input_bytes for row in rows_of(outcome, "device_rounds")}
    assert 66_000 < min(memory) <= max(memory) < 67_500


DIVERGING = (
    "algorithm: fedrecon, factors: 4, upload: dense, weighting: uniform, "
    "client: {method: gradient-steps, steps: 30, learning_rate: 1e12}"
)
NOISE = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1, accounting: false}\n"


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("section", "more", "stage"),
    [
        ("mode: secagg", "", "share-keys"),
        ("mode: ckks, crypto: modelled", "", "compute"),
        ("mode: off", NOISE, "compute"),
        ("mode: secagg", NOISE, "compute"),
    ],
)
def test_an_update_that_is_not_finite_fails_on_its_device(
    section: str, more: str, stage: str, tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, secure(section, learning=DIVERGING, fleet=IDEAL_WIRE, more=more))
    assert outcome.status == "no-round-completed"
    assert endings_of(outcome) == {("failed", stage, "not-finite"): 12}
    (round_,) = rows_of(outcome, "rounds")
    assert (round_["outcome"], round_["reason"]) == ("abandoned", "quorum")
