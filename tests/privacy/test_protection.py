"""What a device does to its update before anybody sees it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from privacy_statistics import distance_to_normal

from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import load
from edge.core.errors import LocalProtocolError
from edge.core.vocabulary import Outcome, Reason, label
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import NotFiniteError
from edge.learning.updates import ClientUpdate
from edge.privacy.protection import Protection


def entropy(device: int = 1, number: int = 1) -> SeededEntropy:
    return SeededEntropy(bytes(16), device, number)


def update(scale: float = 1.0, **arrays: Any) -> ClientUpdate:
    """Return an update of norm 5·``scale`` over two arrays, with the rows that it changes."""
    made: dict[str, npt.NDArray[Any]] = {
        "rows": np.array([3, 900], np.int32),
        "factors": np.float32(scale) * np.array([[3.0, 0.0], [0.0, 0.0]], np.float32),
        "bias": np.array([0.0, -4.0 * scale]),
    }
    return ClientUpdate(made | arrays, 1.0, 17, 0.25)


def norm(protected: ClientUpdate) -> float:
    return math.sqrt(
        sum(
            float(np.square(array.astype(np.float64)).sum())
            for array in protected.arrays.values()
            if array.dtype.kind == "f"
        )
    )


def test_the_norm_over_all_arrays_together_is_clipped() -> None:
    protected, clipped = Protection(2.5, 0.0, bare=False).apply(update(), entropy())
    assert clipped
    assert norm(protected) == pytest.approx(2.5, rel=1e-6)
    assert norm(protected) <= 2.5
    assert protected.arrays["factors"][0, 0] == pytest.approx(1.5, rel=1e-6)
    assert protected.arrays["bias"].tolist() == [0.0, pytest.approx(-2.0, rel=1e-6)]


def test_an_update_within_the_bound_stays_as_it_is() -> None:
    protected, clipped = Protection(5.5, 0.0, bare=False).apply(update(), entropy())
    assert not clipped
    for name, array in update().arrays.items():
        assert protected.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(protected.arrays[name], array)
    assert protected[1:] == update()[1:]


def test_rows_are_no_numbers_to_clip_or_blur() -> None:
    protected, _ = Protection(0.1, 3.0, bare=True).apply(update(), entropy())
    assert list(protected.arrays) == list(update().arrays)
    assert protected.arrays["rows"].tolist() == [3, 900]
    assert protected.arrays["rows"].dtype == np.int32


def test_an_update_is_never_changed_in_place() -> None:
    before = update(2.0)
    Protection(1.0, 1.0, bare=True).apply(before, entropy())
    for name, array in update(2.0).arrays.items():
        np.testing.assert_array_equal(before.arrays[name], array)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("noise_sd", [0.0, 1.0])
def test_examples_and_loss_stay_on_the_device_if_no_noise_hides_them(bare: bool, noise_sd: float) -> None:
    protected, _ = Protection(1.0, noise_sd, bare).apply(update(), entropy())
    assert (protected.examples, protected.loss) == ((0, 0.0) if bare else (17, 0.25))
    assert protected.weight == 1.0


def test_noise_comes_after_clipping_and_on_every_element() -> None:
    wide = ClientUpdate({"factors": np.full((200, 100), 7.0, np.float32), "bias": np.zeros(20_000)}, 1, 9, 1)
    protected, clipped = Protection(0.5, 0.25, bare=True).apply(wide, entropy())
    assert clipped
    mean = 0.5 / math.sqrt(20_000)
    drawn = (protected.arrays["factors"].astype(np.float64).ravel() - mean) / 0.25
    assert distance_to_normal(drawn) < 2.7
    assert distance_to_normal(protected.arrays["bias"] / 0.25) < 2.7
    assert abs(float(np.corrcoef(drawn, protected.arrays["bias"])[0, 1])) < 6 / math.sqrt(20_000)


def test_noise_follows_from_the_entropy_alone() -> None:
    protection = Protection(1.0, 0.5, bare=True)
    usual = protection.apply(update(), entropy())[0].arrays["bias"].tolist()
    assert protection.apply(update(), entropy())[0].arrays["bias"].tolist() == usual
    assert protection.apply(update(), entropy(device=2))[0].arrays["bias"].tolist() != usual
    assert protection.apply(update(), entropy(number=2))[0].arrays["bias"].tolist() != usual


def test_without_noise_no_secret_is_used_up() -> None:
    source = entropy()
    Protection(1.0, 0.0, bare=True).apply(update(), source)
    assert source.bytes(16) == entropy().bytes(16)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(NotFiniteError):
        Protection(1.0, 0.0, bare=True).apply(update(bias=np.array([0.0, value])), entropy())


def test_a_bound_that_is_none_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        Protection(0.0, 0.0, bare=True).apply(update(), entropy())


# -- in a run --------------------------------------------------------------------------------------------

SCENARIO = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 40, items: 50, ratings_per_user: 10}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, weighting: uniform}
privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 0, accounting: false}
rounds: {count: 1, cohort: 40, quorum: 39, deadline: 300 s}
"""
VICTIM = 17


class Observer:
    """Observes nothing."""

    def on_start(self, name: str, rounds: int | None) -> None: ...

    def on_round(self, summary: Any) -> None: ...

    def on_evaluation(self, round_number: int, values: Any) -> None: ...

    def on_end(self, status: str) -> None: ...


def test_a_device_whose_update_is_not_finite_fails_and_the_round_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SCENARIO)
    loaded = load(file)
    assembly = assemble(loaded)
    training = assembly.workload.training

    def poisoned(state: Any, round_number: int) -> Any:
        kernel = training(state, round_number)

        def compute(clients: npt.NDArray[np.int64]) -> Any:
            updates = kernel(clients)

            def made() -> Any:
                for client, one in zip(clients.tolist(), updates(), strict=True):
                    nothing = {name: array * np.nan for name, array in one.arrays.items()}
                    yield one._replace(arrays=one.arrays | nothing) if client == VICTIM else one

            return made

        return compute

    assembly.workload.training = poisoned  # type: ignore[method-assign]
    outcome = run_assembled(loaded, assembly, target=tmp_path / "out", observer=Observer())
    assert outcome.status == "finished"
    rows = open_run(outcome.directory).read("device_rounds").to_pylist()
    ended = {row["device"]: (row["outcome"], row["reason"]) for row in rows}
    failed = {device: how for device, how in ended.items() if how[0] != label(Outcome.COMPLETED)}
    assert failed == {VICTIM: (label(Outcome.FAILED), label(Reason.NOT_FINITE))}
