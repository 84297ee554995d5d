"""What is kept back for validation and test has no part in training, whatever the method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import rows_of, run_text

from coordinator.run import assembling
from coordinator.swarm.methods import Asked, method
from edge.core.rng import Draws
from edge.data.split import Split
from edge.data.store import RatingStore
from edge.learning.registry import METHODS

OF_RATINGS = sorted(name for name, entry in METHODS.items() if entry.data == "ratings")
ITEMS = 60


def scenario(name: str, draw: int, *, implicit: bool, how: str = "") -> str:
    """Return a scenario of a method with random settings; ``implicit`` has it learn from ones and zeros."""
    drawn = method(Draws(5, name, draw), name, Asked(dense=False, uniform=False))
    data: dict[str, Any] = {
        "source": "synthetic-ratings",
        "users": 30,
        "items": ITEMS,
        "ratings_per_user": 12,
        "timestamps": "true",
        "split": {"kind": "ratio", "test": "20%", "validation": "20%"},
    }
    if METHODS[name].needs_features:
        data["features"] = {"kind": "synthetic"}
    if implicit:
        data["positive"] = 2
        if not drawn.only_ranks:
            data["negatives"] = 4
    if how:
        data["held_out_negatives"] = how
    ranks = implicit or drawn.only_ranks
    sections = {
        "format": 2,
        "data": data,
        "fleet": {"mix": "global_android_2024", "availability": "always_on"},
        "learning": drawn.settings,
        "rounds": {"count": 3, "cohort": 20, "deadline": "10 min"},
        "evaluation": {"every": 1, "on": "validation", **({"ranking": {}} if ranks else {})},
    }
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in sections.items()) + "\n"


def elsewhere(split: Split) -> Split:
    """Return a split whose held-out items are all replaced by others that their users have not rated."""
    taken = np.zeros((split.train.n_users, ITEMS), bool)
    for store in split.parts:
        taken[store.owners(), store.items] = True

    def moved(store: RatingStore | None) -> RatingStore | None:
        assert store is not None
        items: npt.NDArray[Any] = store.items.copy()
        for user in range(store.n_users):
            part = slice(store.indptr[user], store.indptr[user + 1])
            free = np.flatnonzero(~taken[user])[: part.stop - part.start]
            items[part] = free
            taken[user, free] = True
        return replace(store, items=items)

    return replace(split, validation=moved(split.validation), test=moved(split.test))


def model_of(folder: Path, name: str, text: str) -> bytes:
    outcome = run_text(folder, text, name=name)
    assert outcome.status == "finished"
    # Every number that a device of the method reports is in its range.
    assert not [row for row in rows_of(outcome, "device_rounds") if row["reason"] == "out-of-range"]
    with np.load(outcome.directory / "model.npz") as model:
        return b"".join(model[key].tobytes() for key in sorted(model.files))


def both_models(folder: Path, patch: pytest.MonkeyPatch, text: str) -> tuple[bytes, bytes]:
    """Return the models of a scenario as it stands, and with its held-out items replaced."""
    as_it_stands = model_of(folder, "as-it-stands", text)
    split_of = assembling._split
    with patch.context() as inside:
        inside.setattr(assembling, "_split", lambda *arguments: elsewhere(split_of(*arguments)))
        return as_it_stands, model_of(folder, "replaced", text)


@pytest.mark.parametrize(
    ("implicit", "draw"),
    [
        pytest.param(False, 0, id="ratings"),
        pytest.param(False, 1, id="ratings, other settings", marks=pytest.mark.slow),
        pytest.param(True, 0, id="implicit", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", OF_RATINGS)
def test_held_out_items_leave_the_model_as_it_is(
    name: str, implicit: bool, draw: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = both_models(tmp_path, monkeypatch, scenario(name, draw, implicit=implicit))
    assert model == other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmf", "fedncf"])
def test_held_out_items_that_are_spared_shape_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = scenario(name, 0, implicit=True, how="spared")
    model, other = both_models(tmp_path, monkeypatch, text)
    assert model != other
