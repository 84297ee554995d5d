"""What both ends agree on: the configuration, the layout of an input, the ring, the transitions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from secagg_harness import Fleet, small_config

from edge.core.errors import LocalProtocolError
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import (
    InfeasibleError,
    MalformedMessageError,
    OverflowingConfigError,
    ThresholdError,
    TooFewContributorsError,
)
from edge.crypto.prg import ring_order
from edge.secagg.checks import read_devices
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.graph import GraphParameters, neighbours
from edge.secagg.inputs import decode_sum, encode_input
from edge.secagg.keylist import RoundContext, keys_statement, nearest
from edge.secagg.states import (
    COORDINATOR_FINAL,
    COORDINATOR_TRANSITIONS,
    DEVICE_FINAL,
    DEVICE_TRANSITIONS,
    CoordinatorEvent,
    DeviceEvent,
    Mode,
)
from edge.wire import messages
from edge.wire.messages import MaskedInput, SealedShares, UnmaskShares

GUIDE = Path(__file__).parents[2] / "docs" / "secure-aggregation.md"


# -- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"parts": ()}, LocalProtocolError),
        ({"parts": (RealPart("", 5, 1.0),)}, LocalProtocolError),
        ({"parts": (RealPart("a", 5, 1.0), CountPart("a", 5, 1))}, LocalProtocolError),
        ({"parts": (RealPart("a", 0, 1.0),)}, LocalProtocolError),
        ({"parts": (CountPart("a", 1, 0),)}, LocalProtocolError),
        ({"parts": (CountPart("a", 1, 2**28),)}, OverflowingConfigError),
        ({"parts": (RealPart("a", 1, 0.0),)}, OverflowingConfigError),
        ({"weight_max": 2**28}, OverflowingConfigError),
        ({"weight_max": 0}, OverflowingConfigError),
        ({"bits": 24}, LocalProtocolError),
        ({"min_contributors": 1}, TooFewContributorsError),
        ({"n_max": 1}, InfeasibleError),
        ({"n_max": 2**31}, OverflowingConfigError),
        ({"corrupt": 0.5, "dropout": 0.5}, InfeasibleError),
        ({"parameters": GraphParameters(4, 2)}, ThresholdError),
        ({"parameters": GraphParameters(10, 2)}, ThresholdError),
        ({"parameters": GraphParameters(5, 4)}, InfeasibleError),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        small_config(**({"n_max": 20, "dropout": 0.0} | changes))


def test_the_complete_graph_can_be_asked_for() -> None:
    sparse = small_config(100, corrupt=0.02, dropout=0.02)
    complete = small_config(100, corrupt=0.02, dropout=0.02, sparse=False)
    assert sparse.graph(100).k < 99
    assert complete.graph(100) == GraphParameters(99, 52)


def test_a_fixed_degree_is_lowered_to_the_complete_graphs() -> None:
    config = small_config(20, parameters=GraphParameters(6, 4))
    assert config.graph(20) == GraphParameters(6, 4)
    assert config.graph(6) == GraphParameters(5, 4)
    with pytest.raises(ThresholdError):
        config.graph(3)


def test_a_written_graph_must_be_safe_for_those_who_come() -> None:
    config = small_config(51, parameters=GraphParameters(48, 28), corrupt=0.105, unsafe=False)
    assert config.graph(51) == config.graph(49) == GraphParameters(48, 28)
    with pytest.raises(ThresholdError, match="unsafe for 51 devices, 5 of them corrupt; write 28 to 49"):
        small_config(51, parameters=GraphParameters(48, 27), corrupt=0.105, unsafe=False)
    with pytest.raises(InfeasibleError, match="with 2 neighbours each no threshold is safe"):
        small_config(60, parameters=GraphParameters(2, 2), unsafe=False)
    unsafe = small_config(60, parameters=GraphParameters(2, 2), unsafe=True)
    assert unsafe.graph(60) == GraphParameters(2, 2)


def test_two_honest_contributors_must_remain_if_all_corrupt_ones_contribute() -> None:
    config = small_config(30, corrupt=0.3, dropout=0.0, min_contributors=4)
    assert [config.contributors_needed(n) for n in (2, 6, 7, 10, 30)] == [4, 4, 4, 5, 11]


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (RealPart("factors", 5, 2.5), CountPart("touched", 3, 1))},
        {"parts": (RealPart("factors", 6, 2.0), CountPart("touched", 3, 1))},
        {"parts": (RealPart("factors", 5, 2.0), CountPart("touched", 3, 2))},
        {"n_max": 31},
        {"weight_max": 8},
        {"bits": 64},
        {"mode": Mode.ACTIVE},
        {"corrupt": 0.2},
        {"dropout": 0.2},
        {"min_contributors": 3},
        {"sparse": False},
        {"parameters": GraphParameters(6, 4)},
        {"unsafe": False},
    ],
)
def test_every_setting_is_bound_into_the_hash(changes: dict[str, Any]) -> None:
    assert small_config(**({"n_max": 30} | changes)).hash != small_config(30).hash


def test_equal_settings_have_one_encoding() -> None:
    whole = SecAggConfig(parts=(RealPart("a", 1, 2),), n_max=4, corrupt=0)
    assert whole.encoded == SecAggConfig(parts=(RealPart("a", 1, 2.0),), n_max=4, corrupt=0.0).encoded


# -- layout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_an_input_comes_back_from_a_sum_of_one(bits: int) -> None:
    parts = (CountPart("first", 2, 9), RealPart("second", 3, 1.0), RealPart("third", 1, 50.0))
    config = SecAggConfig(parts=parts, n_max=5, weight_max=3, bits=bits)
    values = {
        "third": np.array([70.0]),
        "first": np.array([-9, 4], np.int8),
        "second": np.array([0.5, -1.0, 0.25], np.float32),
    }
    vector, clipped, _ = encode_input(config, values, 3, SeededEntropy(bytes(16), 1, 1))
    assert vector.dtype == np.dtype(f"<u{bits // 8}")
    assert len(vector) == config.length == 8
    assert clipped == 1
    sums = decode_sum(config, vector)
    assert sums.counts["first"].tolist() == [-9, 4]
    assert sums.reals["second"] == pytest.approx([1.5, -3.0, 0.75], abs=1e-6)
    assert sums.reals["third"] == pytest.approx([150.0])
    assert (sums.weight, sums.contributors) == (3, 1)


# -- lists and signed statements -------------------------------------------------------------------------


def test_lists_of_devices_ascend() -> None:
    for good in ([], [0], [1, 5, 9]):
        assert read_devices({"d": np.array(good, np.int64)}, "d").tolist() == good
    for bad in ([-1], [1, 1], [2, 1]):
        with pytest.raises(MalformedMessageError):
            read_devices({"d": np.array(bad, np.int64)}, "d")


def test_signed_keys_name_run_round_and_device() -> None:
    statements = {
        keys_statement(RoundContext(run, number, bytes(32), model), device, record)
        for run in ("a", "ab")
        for number in (1, 2)
        for model in (bytes(32), b"m" * 32)
        for device in (1, 2)
        for record in (bytes(96), b"r" * 96)
    }
    assert len(statements) == 32


@pytest.mark.parametrize(("n", "k"), [(7, 4), (8, 6), (9, 8), (2, 1)])
def test_a_device_finds_the_neighbours_that_the_coordinator_gives_it(n: int, k: int) -> None:
    order = ring_order([3 * device for device in range(n)], bytes(range(16)))
    everybody = neighbours(order, k)
    assert {device: nearest(order, k, device) for device in order} == everybody


# -- sizes -----------------------------------------------------------------------------------------------


def test_what_a_device_uploads_besides_its_input_grows_with_its_neighbours_only() -> None:
    uploaded = {}
    for n in (12, 24):
        for k in (4, 10):
            fleet = Fleet(n, parameters=GraphParameters(k, k))
            fleet.advertise()
            fleet.run()
            sizes: dict[int, int] = {}
            for frame in fleet.frames:
                assert not isinstance(frame, messages.Abort)
                if isinstance(frame, SealedShares | UnmaskShares):
                    sizes[frame.device] = sizes.get(frame.device, 0) + sum(
                        array.nbytes for array in frame.arrays.values()
                    )
                if isinstance(frame, MaskedInput):
                    assert frame.arrays["masked"].nbytes == 4 * fleet.config.length
            uploaded[n, k] = max(sizes.values())
    # For each neighbour a sealed message of 84 bytes, commitments of 32 and a share of 34; of one's own
    # commitments and a share.
    assert uploaded == {(n, k): 150 * k + 66 for n in (12, 24) for k in (4, 10)}


# -- transitions -----------------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_left_unless_it_is_final() -> None:
    for mode in Mode:
        check_table(DEVICE_TRANSITIONS[mode], DEVICE_FINAL, DeviceEvent.ABORT)
        check_table(COORDINATOR_TRANSITIONS[mode], COORDINATOR_FINAL, CoordinatorEvent.ABORT)


def check_table(table: Any, final: frozenset[Any], abort: Any) -> None:
    left = {state for state, _ in table}
    reached = set(table.values())
    assert left - reached == {next(iter(table))[0]}
    assert reached - left == final
    assert all((state, abort) in table for state in left)


def diagram(table: dict[tuple[Any, Any], Any]) -> str:
    """Return ``table`` as the text of a Mermaid state diagram, in the order of the table."""
    lines = ["stateDiagram-v2"]
    names = {state.name: state.value for (state, _), after in table.items() for state in (state, after)}
    lines += [f'    state "{value}" as {name}' for name, value in names.items()]
    first = next(iter(table))[0]
    lines.append(f"    [*] --> {first.name}")
    lines += [f"    {state.name} --> {after.name}: {event.value}" for (state, event), after in table.items()]
    final = [after for after in dict.fromkeys(table.values()) if not any(after is s for s, _ in table)]
    lines += [f"    {state.name} --> [*]" for state in final]
    return "\n".join(lines)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(("machine", "tables"), [("device", DEVICE_TRANSITIONS), ("coordinator", COORDINATOR_TRANSITIONS)])  # fmt: skip # noqa: E501
def test_the_diagrams_in_the_guide_are_drawn_from_the_tables(machine: str, tables: Any, mode: Mode) -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    heading = f"### The {machine}, {mode.value}"
    assert heading in guide
    block = re.search(r"```mermaid\n(.*?)\n```", guide[guide.index(heading) :], re.S)
    assert block is not None
    assert block.group(1) == diagram(tables[mode])
