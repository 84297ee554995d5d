"""What somebody on the network reads in real sessions without TLS."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_helpers import SMALL, Silent, loaded_text, rows_of

from coordinator.engine.assembly import Assembly
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario
from coordinator.service.conducting import RealTime
from coordinator.service.local_devices import LocalDevices
from edge.core.vocabulary import RoundKind
from edge.wire.codec import CodecLimits, decode
from edge.wire.messages import AnyMessage, MaskedInput, Report
from edge.wire.session_frames import Piece

ROOT = Path(__file__).parents[2]
DEVICES = 12
ONE_ROUND = SMALL.replace("count: 3, cohort: 6", f"count: 1, cohort: {DEVICES}")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chaos_proxy")


def listened(wire: Any, folder: Path, text: str) -> tuple[RunOutcome, list[AnyMessage]]:
    """Run a scenario; return it, and what devices said to whoever listens."""
    heard: list[Any] = []

    @asynccontextmanager
    async def company(url: str, loaded: LoadedScenario, assembly: Assembly) -> AsyncIterator[None]:
        found = re.fullmatch(r"http://(.+):(\d+)", url)
        assert found
        async with wire.Proxy(found[1], int(found[2])) as proxy:
            devices = LocalDevices(proxy.url, range(DEVICES), shaped=False, known=(loaded, assembly))
            async with asyncio.TaskGroup() as group:
                group.create_task(devices.run())
                yield
            heard.extend(proxy.recordings)

    loaded = loaded_text(folder, text)
    conductor = RealTime(wait_for=DEVICES, company=company)
    outcome = run_assembled(
        loaded, assemble(loaded), target=folder / "run", observer=Silent(), conductor=conductor
    )
    return outcome, [message for one in heard for message in messages(one.pieces)]


def messages(pieces: Iterable[Piece]) -> Iterable[AnyMessage]:
    whole = b""
    for piece in pieces:
        whole += bytes(piece.data)
        if not piece.left:
            yield decode(whole, CodecLimits())
            whole = b""


def test_without_tls_and_secure_sum_a_listener_reads_every_report(wire: Any, tmp_path: Path) -> None:
    outcome, heard = listened(wire, tmp_path, ONE_ROUND)
    reports = {one.device: one for one in heard if isinstance(one, Report)}
    rows = rows_of(outcome, "device_rounds")
    assert len(reports) == len(rows) == DEVICES
    for row in rows:
        report = reports[row["device"]]
        assert (report.examples, report.loss) == (row["examples"], row["loss"])
        assert any(np.any(array) for array in report.arrays.values())


MEAN_QUERY = "ratings_per_user: 8, mean_query: {range: [1, 5], cohort: 12}"
QUERIED = ONE_ROUND.replace("ratings_per_user: 8", MEAN_QUERY).replace(
    "upload: dense", "upload: dense, subtract_mean: true"
)


def test_in_the_clear_a_query_of_the_mean_tells_each_device_s_sum(wire: Any, tmp_path: Path) -> None:
    _, heard = listened(wire, tmp_path, QUERIED)
    queried = [one for one in heard if isinstance(one, Report) and is_query(one.round_number)]
    reports = {one.device: one.arrays["sums"] for one in queried}
    workload: Any = assemble(loaded_text(tmp_path, QUERIED)).workload
    for device, sums in reports.items():
        ratings = workload.split.train.gather(workload.clients.users_of(device)).ratings
        np.testing.assert_allclose(sums, [len(ratings), (ratings - 1.0).sum()], rtol=1e-6)
    assert len(reports) == DEVICES


def test_of_a_query_under_a_secure_sum_nobody_sees_the_sum_of_one_device(wire: Any, tmp_path: Path) -> None:
    text = QUERIED + "secure_aggregation: {mode: secagg-plus, clip: 1}\n"
    outcome, heard = listened(wire, tmp_path, text)
    assert open_run(outcome.directory).manifest["rating_mean"]["devices"] == DEVICES
    assert not any(isinstance(one, Report) for one in heard)
    masked = [one for one in heard if isinstance(one, MaskedInput) and is_query(one.round_number)]
    inputs = [one.arrays["masked"] for one in masked]
    assert len(inputs) == DEVICES
    assert {values.dtype for values in inputs} == {np.dtype(np.uint64)}
    # A count, or a sum of ratings, is encoded within this part of the ring; what is seen lies anywhere in it.
    parts = np.concatenate(inputs) / 2.0**64
    assert ((parts > 2.0**-24) & (parts < 1 - 2.0**-24)).all()
    assert len(set(np.concatenate(inputs).tolist())) == parts.size


def is_query(round_number: int) -> bool:
    return RoundKind.of(round_number) is RoundKind.MEAN_QUERY


def test_without_tls_a_listener_has_of_a_secure_sum_masked_inputs_alone(wire: Any, tmp_path: Path) -> None:
    text = ONE_ROUND + "secure_aggregation: {mode: secagg-plus, clip: 1}\n"
    _, heard = listened(wire, tmp_path, text)
    assert not any(isinstance(one, Report) for one in heard)
    inputs = [one.arrays["masked"] for one in heard if isinstance(one, MaskedInput)]
    assert len(inputs) == DEVICES
    # Masked numbers fill the ring: of a bare update's encodings all would be near its ends.
    shares = np.concatenate(inputs) / 2.0**32
    assert abs(shares.mean() - 0.5) < 4 * np.sqrt(1 / 12 / shares.size)
    quarters = np.bincount((shares * 4).astype(int), minlength=4) / shares.size
    assert np.abs(quarters - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / shares.size)
