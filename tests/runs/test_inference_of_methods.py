"""Devices of every method run their own models in a run, from the rows that they keep or are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import Silent, rows_of

from coordinator.engine import inference
from coordinator.engine.run_files import MODEL
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits, stream_key

SCENARIO = """
format: 2
seed: 4
data: {source: movielens-100k, path: u.data, split: {kind: leave-one-out}}
fleet: {mix: global_android_2024, availability: always_on}
learning: LEARNING
rounds: {count: 4, cohort: 20, deadline: 300 s, quorum: 1}
evaluation: {every: 4, ranking: {k: [3], negatives: 9}}
inference: {every: 2, devices: 9, top: 6}
"""
STEPS = "{method: gradient-steps, steps: 2, learning_rate: 0.1}"
NETWORK = "gmf_factors: 4, mlp_factors: 6, layers: [8, 5], user_learning_rate: 1"
METHODS = {
    "fedncf": f"{{algorithm: fedncf, {NETWORK}}}",
    "fedmf": "{algorithm: fedmf, factors: 4}",
    "fedavg-mf": "{algorithm: fedavg-mf, factors: 4}",
    "lipm": f"{{algorithm: lipm, factors: 4, fine_tuning: {STEPS}}}",
    "fedrecgel": f"{{algorithm: fedrecgel, base: {{algorithm: fedncf, {NETWORK}}}}}",
    "pfedme": "{algorithm: pfedme, factors: 4}",
    "fedrec": "{algorithm: fedrec, factors: 4}",
    "blur": "{algorithm: blur, factors: 4, norm_bound: 1}",
    "fedprox": f"{{algorithm: fedrecon, factors: 4, proximal: 0.1, client: {STEPS}}}",
    "federated-context": "{algorithm: federated-context, model: {kind: network, width: 4}}",
    "ones and zeros": "{algorithm: fedmf, factors: 4}",
    "local-context": "{algorithm: local-context, model: {kind: two-order, factors: 2}}",
}
FEATURED = ("federated-context", "local-context")


def write_ratings(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for user in range(1, 41):
        for item in rng.choice(60, 12, replace=False) + 1:
            lines.append(f"{user}\t{item}\t{rng.integers(1, 6)}\t{rng.integers(1, 10**6)}\n")
    (folder / "u.data").write_text("".join(lines))
    genres = rng.integers(0, 2, (60, 19))
    films = [
        f"{item}|Film {item}|01-Jan-1990||x|{'|'.join(map(str, row))}\n" for item, row in enumerate(genres, 1)
    ]
    (folder / "u.item").write_text("".join(films))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("sessions", ["shared", "own"])
def test_devices_rank_what_the_method_scores_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sessions: str
) -> None:
    write_ratings(tmp_path)
    outputs: list[dict[str, Any]] = []
    run_round = inference.run_round

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = run_round(*args, **kwargs)
        outputs.append(dict(found.outputs))
        return found

    monkeypatch.setattr(inference, "run_round", noted)
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.replace("LEARNING", METHODS[name]))
    changes = ["data.features={kind: movielens}"] if name in FEATURED else []
    changes += ["data.negatives=2"] if name == "ones and zeros" else []
    loaded = load(file, [*changes, f"inference.sessions={sessions}"])
    assembly = assemble(loaded)
    workload = assembly.workload
    assert isinstance(workload, RatingWorkload)
    outcome = run_assembled(loaded, assembly, target=tmp_path / "run", observer=Silent())
    assert outcome.status == "finished"

    rows = rows_of(outcome, "inferences")
    assert [row["round"] for row in rows] == [2] * 9 + [4] * 9
    devices = np.array([row["device"] for row in rows[9:]])
    users = workload.clients.users[devices]
    with np.load(outcome.directory / MODEL) as saved:
        state = {entry: saved[entry] for entry in saved.files}
    zeros = hashed_bits(stream_key(4, "inference", "zeros"), devices, 4)
    # The run is over: devices hold what they held at the last inference.
    support, own = workload.gather(workload.split.train, users, zeros), workload.rows_of(users, state)
    known = workload.split.train.gather(users)
    keys = hashed_bits(stream_key(4, "inference", "client"), devices, 4)
    expected = workload.algorithm.scores(state, support, keys, own)
    np.testing.assert_allclose(outputs[-1]["scores"], expected, rtol=1e-5, atol=1e-5)
    if own is not None:
        assert np.any(own)
    # Zeros that a device draws are left to rank.
    assert [row["rated"] for row in rows[9:]] == known.counts.tolist()
    for place, listed in enumerate(outputs[-1]["top_items"]):
        rated = known.items[known.indptr[place] : known.indptr[place + 1]]
        assert not np.isin(listed, rated).any()
        assert np.all(np.diff(expected[place, listed]) <= 1e-5)
    for row in rows:
        assert 0 <= row["max_relative_error"] <= 1e-5
        assert row["memory_bytes"] > row["model_bytes"] > 0
    assert len({row["model_bytes"] for row in rows}) == 1


@pytest.mark.slow
def test_nothing_else_in_a_run_changes_and_the_same_comes_again(tmp_path: Path) -> None:
    write_ratings(tmp_path)
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.replace("LEARNING", METHODS["fedncf"]))
    found = {}
    changes = {"once": (), "batches": ("compute.batch=3",), "own": ("inference.sessions=own",)}
    for name, settings in {**changes, "without": ("inference=null",)}.items():
        loaded = load(file, settings)
        outcome = run_assembled(loaded, assemble(loaded), target=tmp_path / name, observer=Silent())
        columns = ("device", "latency_s", "energy_j", "memory_bytes", "model_bytes", "rated")
        rows = [] if name == "without" else rows_of(outcome, "inferences")
        found[name] = (
            [tuple(row[column] for column in columns) for row in rows],
            (outcome.directory / MODEL).read_bytes(),
        )
    assert found["once"] == found["batches"] == found["own"]
    assert found["without"][1] == found["once"][1]
