"""What is kept back for validation and test has no part in training, whatever the method.

Held-out ratings are turned upside down where the data is read, and held-out items are replaced where it is
split: what a run makes of all ratings, before they are split, is looked at as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


DEFAULT_SPLIT = {"kind": "ratio", "test": "20%", "validation": "20%"}


def scenario(
    name: str, draw: int | None, *, implicit: bool, how: str = "", split: Mapping[str, str] = DEFAULT_SPLIT
) -> str:
    """Return a scenario of a method; ``implicit`` has it learn from ones and zeros.

    ``draw`` gives it random settings; None: those that it requires, and defaults.
    """
    drawn = method(Draws(5, name, draw or 0), name, Asked(dense=False, uniform=False))
    settings, only_ranks, learns_ones = drawn.settings, drawn.only_ranks, drawn.learns_ones
    if draw is None:
        settings = required(name, settings)
        made = METHODS[name].Settings.model_validate(settings)
        only_ranks, learns_ones = METHODS[name].only_ranks(made), METHODS[name].learns_ones(made)
    data: dict[str, Any] = {
        "source": "synthetic-ratings",
        "users": 30,
        "items": ITEMS,
        "ratings_per_user": 12,
        "timestamps": "true",
        "split": dict(split),
    }
    if METHODS[name].needs_features:
        data["features"] = {"kind": "synthetic"}
    if implicit:
        data["positive"] = 2
    if (implicit or learns_ones) and not only_ranks:
        data["negatives"] = 4
    if how:
        data["held_out_negatives"] = how
    ranks = implicit or only_ranks or learns_ones
    on = "validation" if "validation" in split or split["kind"] == "leave-one-out" else "test"
    sections = {
        "format": 2,
        "data": data,
        "fleet": {"mix": "global_android_2024", "availability": "always_on"},
        "learning": settings,
        "rounds": {"count": 3, "cohort": 20, "deadline": "10 min"},
        "evaluation": {"every": 1, "on": on, **({"ranking": {}} if ranks else {})},
    }
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in sections.items()) + "\n"


def required(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``settings`` that a method has no default for."""
    fields = METHODS[name].Settings.model_fields
    return {key: value for key, value in settings.items() if key == "algorithm" or fields[key].is_required()}


def upside_down(store: RatingStore, split: Split) -> RatingStore:
    """Return a store in which the held-out ratings of a split are as far from the other end of the scale."""
    held_out = split.held_out
    assert held_out is not None
    keys, kept_back = (one.owners() * ITEMS + one.items for one in (store, held_out))
    codes = store.ratings
    flipped = (codes.max() + codes.min() - codes).astype(codes.dtype)
    chosen = np.isin(keys, kept_back)
    assert (flipped[chosen] != codes[chosen]).any()
    return replace(store, ratings=np.where(chosen, flipped, codes))


def elsewhere(split: Split) -> Split:
    """Return a split whose held-out items are all replaced by others that their users have not rated."""
    taken = np.zeros((split.train.n_users, ITEMS), bool)
    for store in split.parts:
        taken[store.owners(), store.items] = True

    def moved(store: RatingStore | None) -> RatingStore | None:
        if store is None:
            return None
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
    """Return the models of a scenario as it stands, and with its held-out data replaced."""
    as_it_stands = model_of(folder, "as-it-stands", text)
    split_of, read = assembling._split, assembling.read_data

    def other(loaded: Any) -> Any:
        store, file = read(loaded)
        return upside_down(store, split_of(loaded, store)), file

    with patch.context() as inside:
        inside.setattr(assembling, "read_data", other)
        inside.setattr(assembling, "_split", lambda *arguments: elsewhere(split_of(*arguments)))
        return as_it_stands, model_of(folder, "replaced", text)


@pytest.mark.parametrize(
    ("implicit", "draw"),
    [
        pytest.param(False, None, id="ratings, defaults"),
        pytest.param(True, None, id="implicit, defaults", marks=pytest.mark.slow),
        pytest.param(False, 0, id="ratings", marks=pytest.mark.slow),
        pytest.param(False, 1, id="ratings, other settings", marks=pytest.mark.slow),
        pytest.param(True, 0, id="implicit", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", OF_RATINGS)
@pytest.mark.few(5)
def test_held_out_data_leaves_the_model_as_it_is(
    name: str, implicit: bool, draw: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if implicit and METHODS[name].hides_values:
        pytest.skip(f"{name} hides values of ratings, and refuses feedback without any")
    model, other = both_models(tmp_path, monkeypatch, scenario(name, draw, implicit=implicit))
    assert model == other


@pytest.mark.slow
@pytest.mark.parametrize(
    "split",
    [
        pytest.param({"kind": "user-temporal", "test": "20%", "validation": "20%"}, id="user-temporal"),
        pytest.param({"kind": "temporal", "test": "20%", "validation": "20%"}, id="temporal"),
        pytest.param({"kind": "leave-one-out"}, id="leave-one-out"),
        pytest.param({"kind": "users", "unseen": "10%", "validation": "10%", "test": "20%"}, id="users"),
    ],
)
@pytest.mark.parametrize("name", OF_RATINGS)
def test_held_out_data_of_other_splits_leaves_the_model_as_it_is(
    name: str, split: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = both_models(tmp_path, monkeypatch, scenario(name, None, implicit=False, split=split))
    assert model == other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmf", "fedncf"])
def test_held_out_items_that_are_spared_shape_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = scenario(name, 0, implicit=True, how="spared")
    model, other = both_models(tmp_path, monkeypatch, text)
    assert model != other
