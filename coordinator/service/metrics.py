"""The figures of a run for Prometheus: nothing is counted here, all is read from the live state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.engine.host import rss_bytes
from coordinator.service.dashboard.histogram import Histogram
from coordinator.service.dashboard.live_state import LiveState
from edge.core.errors import MissingExtraError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def exposition(state: LiveState) -> tuple[bytes, str]:
    """Return all metrics as text, and the type of that text.

    No label names a device, and every label has few values.

    Raises
    ------
    MissingExtraError : the extra ``service`` is not installed.
    """
    try:
        # Not before: it is an extra, and only this asks for it.
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
        from prometheus_client.exposition import CONTENT_TYPE_LATEST  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("metrics need prometheus-client: pip install 'recfleet[service]'") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector:
    """Reads the live state."""

    def __init__(self, state: LiveState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        with self._state.lock:
            found = [*_of_rounds(self._state), *_of_sessions(self._state)]
        yield from found


def _of_rounds(state: LiveState) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    tables = state.tables
    rounds = CounterMetricFamily("recfleet_rounds", "Rounds that are over.", labels=["outcome"])
    for outcome, number in tables.rounds.items():
        rounds.add_metric([outcome], number)
    yield rounds
    device_rounds = CounterMetricFamily(
        "recfleet_device_rounds", "Participations of devices that are over.", labels=["outcome"]
    )
    for outcome, number in tables.device_rounds.items():
        device_rounds.add_metric([outcome], number)
    yield device_rounds
    sent = CounterMetricFamily(
        "recfleet_bytes", "Bytes sent in rounds that are over.", labels=["direction", "kind"]
    )
    for direction, sizes in tables.sent_bytes.items():
        for kind, size in sizes.items():
            sent.add_metric([direction, kind], size)
    yield sent
    fates = CounterMetricFamily(
        "recfleet_bytes_by_fate",
        "What became of those bytes; wasted ones are in another fate, too.",
        labels=["fate"],
    )
    for fate, size in tables.fate_bytes.items():
        fates.add_metric([fate], size)
    yield fates
    suspended = CounterMetricFamily(
        "recfleet_devices_suspended", "Devices that are not invited any more.", labels=["reason"]
    )
    for reason, number in sorted(tables.suspended.items()):
        suspended.add_metric([reason], number)
    yield suspended
    devices = GaugeMetricFamily(
        "recfleet_devices", "Devices in the rounds under way, by where they stand.", labels=["state"]
    )
    for name, number in state.at_work.states().items():
        devices.add_metric([name], number)
    yield devices
    yield GaugeMetricFamily("recfleet_round", "The newest round.", value=state.at_work.round_number)
    yield _histogram(
        "recfleet_round_duration_seconds", "Duration of rounds, on the clock of the run.", tables.duration_s
    )
    yield GaugeMetricFamily(
        "recfleet_process_resident_memory_bytes", "Resident memory of this process.", value=rss_bytes()
    )


def _of_sessions(state: LiveState) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    sessions = state.sessions
    if not sessions.used:
        return
    now = GaugeMetricFamily(
        "recfleet_sessions", "Sessions, by whether there is a connection.", labels=["state"]
    )
    now.add_metric(["connected"], sessions.connected)
    now.add_metric(["away"], sessions.away)
    yield now
    yield CounterMetricFamily("recfleet_sessions_begun", "Sessions that began.", value=sessions.begun)
    yield CounterMetricFamily(
        "recfleet_sessions_resumed", "Sessions that went on with a new connection.", value=sessions.resumed
    )
    yield CounterMetricFamily("recfleet_connections_broken", "Connections that broke.", value=sessions.broken)
    for name, help_text, counts in (
        ("recfleet_sessions_ended", "Sessions that are over.", sessions.ended),
        ("recfleet_refused", "Connections that were not let in.", sessions.refused),
    ):
        counter = CounterMetricFamily(name, help_text, labels=["reason"])
        for reason, number in sorted(counts.items()):
            counter.add_metric([reason], number)
        yield counter
    yield _histogram(
        "recfleet_handling_seconds",
        "Time this host worked on a message from a device.",
        sessions.handling_s,
    )


def _histogram(name: str, help_text: str, values: Histogram) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily  # noqa: PLC0415

    buckets = [
        ("+Inf" if math.isinf(bound) else repr(float(bound)), number) for bound, number in values.cumulative()
    ]
    return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=values.sum)
