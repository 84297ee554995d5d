"""From a table of telemetry to a file of profiles: groups, the nearest of the catalogue, what is written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from device_profiles.catalogue import Catalogue
from device_profiles.profile import DeviceProfile, NetworkProfile
from device_profiles.quantities import BYTE_RATE, COMPUTE_RATE, DURATION, RATE, Quantity
from edge.core.errors import DataError
from edge.fitting.links import FEWEST_TRANSFERS, FittedValue, LinkFit, LinkPrior, Transfers, fit_link
from edge.fitting.rates import RateSpread
from edge.fitting.replay import Match, fit_corrected, matches
from edge.fitting.tasks import AvailabilityFit, TaskFit, TaskPrior, fit_availability, fit_tasks
from edge.fitting.telemetry import SPANS, Telemetry

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST_DEVICES: Final = 10
_SILENCE_S: Final = 10.0
_NEVER_TOLD: Final = "memory, power, battery, crypto, throttling"
_OTHER_RADIO_S: Final = 0.15
_NEAR: Final = 0.5
"""Difference of logs within which a class is like the profile of its name."""
_UNKNOWN: Final = "unknown"
_DEFAULT_DEVICE: Final = "phone_mid_2020"
_DEFAULT_SPREAD: Final = RateSpread(0.0, 0.0, 0.36, 0.8, 60.0)


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """A network: its name in the table and in the file, the nearest profile, and what was found."""

    label: str
    name: str
    like: str
    fit: LinkFit
    matches: tuple[Match, ...]
    radio: str
    """The radio of the nearest profile."""


@dataclass(frozen=True, slots=True)
class FittedClass:
    """A class of devices: its name in the table and in the file, the nearest profile, and what was found."""

    label: str
    name: str
    like: str
    fit: TaskFit
    threads: float
    """How many times as fast all threads of the nearest profile are as one."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """All that was found in a table.

    ``shares`` is of each pair of class and network, as named in the file; ``notes`` what should be known.
    """

    telemetry: Telemetry
    networks: tuple[FittedNetwork, ...]
    classes: tuple[FittedClass, ...]
    availability: AvailabilityFit | None
    shares: Mapping[tuple[str, str], float]
    notes: tuple[str, ...]


def fit_telemetry(telemetry: Telemetry, catalogue: Catalogue) -> Fitted:
    """Return the profiles of a table.

    Raises
    ------
    DataError : too few rows or devices for any profile.
    """
    columns = telemetry.columns
    notes = [f"{count:,} rows left out: {reason}" for reason, count in telemetry.dropped.items() if count]
    labels = {key: _labels(columns[key]) for key in ("class", "network")}
    moved = telemetry.of_kind("transfer")
    networks = []
    small = []
    for label, rows in _groups(labels["network"], moved):
        transfers = _transfers(telemetry, rows)
        if len(transfers) < FEWEST_TRANSFERS or transfers.devices < FEWEST_DEVICES:
            small.append(f"{label!r} ({len(transfers)} of {transfers.devices} devices)")
            continue
        networks.append(_fit_network(label, transfers, columns, rows, catalogue))
    classes = []
    for label, rows in _groups(labels["class"], telemetry.of_kind("compute")):
        classes.append(_fit_class(label, columns, rows, catalogue))
    for label, rows in _groups(labels["class"], moved):
        if label not in {one.label for one in classes}:
            classes.append(_fit_class(label, columns, rows[:0], catalogue))
    availability = _fit_check_ins(telemetry)
    if not networks and all(one.fit.kind == "none" for one in classes) and availability is None:
        few = f"networks with too few transfers: {', '.join(small)}; " if small else ""
        raise DataError(
            f"{telemetry.name}: {few}a profile needs {FEWEST_TRANSFERS} transfers that arrived, of"
            f" {FEWEST_DEVICES} devices, or 30 tasks with their work, or 100 check-ins of which some failed;"
            " give one name to networks that are alike"
        )
    notes += [f"network {one}: too few transfers for a profile" for one in small]
    failed = moved[columns["ok"][moved] == 0.0]
    if moved.size and not failed.size:
        notes.append("no transfer failed: these are survivors, and outages may be missing")
    for network in networks:
        notes += _warnings(network)
    names = {one.label: one.name for one in networks} | {one.label: one.name for one in classes}
    shares = _shares(labels, moved, columns, {one.label for one in networks}, names)
    return Fitted(telemetry, tuple(networks), tuple(classes), availability, shares, tuple(notes))


def _labels(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array(
        [_UNKNOWN if value is None or not value.strip() else value.strip()[:80] for value in column],
        dtype=object,
    )


def _groups(labels: npt.NDArray[Any], rows: Ints) -> Iterator[tuple[str, Ints]]:
    names, code = np.unique(labels[rows].astype(str), return_inverse=True)
    for place, name in enumerate(names.tolist()):
        yield name, rows[code == place]


def profile_name(label: str) -> str:
    """Return a label as a name that profiles may have: small letters, digits, ``_``, ``-`` and ``.``."""
    name = re.sub(r"[^a-z0-9_.-]+", "_", label.lower()).strip("_.-")
    return name[:60].strip("_.-") or _UNKNOWN


def _transfers(telemetry: Telemetry, rows: Ints) -> Transfers:
    """Return the completed transfers: sizes, times, round trips and flags, by device and in order of time."""
    columns = telemetry.columns
    rows = rows[
        (columns["ok"][rows] != 0.0) & np.isfinite(columns["seconds"][rows]) & (columns["bytes"][rows] > 0.0)
    ]
    device = np.unique(columns["device"][rows].astype(str), return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((columns["time_s"][rows], device))
    rows, device = rows[order], device[order]
    start_s = columns["time_s"][rows]
    seconds = columns["seconds"][rows] - np.nan_to_num(columns["server_s"][rows])
    ends = start_s + columns["seconds"][rows]
    gap_s = np.full(len(rows), np.inf)
    gap_s[1:] = np.where(device[1:] == device[:-1], start_s[1:] - ends[:-1], np.inf)
    cold = columns["cold"][rows]
    handshakes = columns["handshakes"][rows]
    new = np.where(np.isnan(handshakes), 0.0, handshakes) > 0.0
    told = np.where(np.isnan(cold), np.where((gap_s > _SILENCE_S) | new, 1.0, 0.0), cold)
    # A first byte after an unknown number of round trips tells nothing of rates.
    told = np.where(np.isnan(handshakes) & (gap_s > _SILENCE_S), -1.0, told)
    span = [SPANS["one-way" if value is None else value] for value in columns["span"][rows].tolist()]
    return Transfers(
        device=device,
        start_s=start_s,
        up=columns["direction"][rows].astype(str) == "up",
        size=columns["bytes"][rows],
        seconds=seconds,
        trips=np.array(span, dtype=np.float64),
        handshakes=np.nan_to_num(handshakes).astype(np.int64),
        cold=told.astype(np.int64),
        rtt_s=columns["rtt_s"][rows],
        resent=np.where(np.isnan(columns["resent"][rows]), -1.0, columns["resent"][rows]).astype(np.int64),
    )


def link_prior(profile: NetworkProfile) -> LinkPrior:
    """Return what a profile of the catalogue says, as the estimators take it."""
    slow = profile.slow_rate
    return LinkPrior(
        down_bps=profile.down_bps,
        up_bps=profile.up_bps,
        rtt_s=profile.rtt_s,
        jitter_s=profile.jitter_s,
        loss=profile.loss,
        spread=RateSpread(
            profile.device_sigma_log**2,
            0.0 if slow is None else slow.sigma_log**2,
            max(profile.rate_sigma_log, 0.05) ** 2,
            profile.rate_rho_1s,
            60.0 if slow is None else slow.time_s,
        ),
        outage_fraction=0.0 if profile.outage is None else profile.outage.fraction,
        outage_mean_s=1.0 if profile.outage is None else profile.outage.mean_s,
        promotion_s=profile.radio.promotion_s,
        connect_success=profile.connect_success,
    )


def _fit_network(
    label: str, transfers: Transfers, columns: Mapping[str, Any], rows: Ints, catalogue: Catalogue
) -> FittedNetwork:
    known = catalogue.networks
    # A rough fit says which profile is near; what it lacks is taken from that.
    first = link_prior(known.get(profile_name(label), next(iter(known.values()))))
    rough = fit_link(transfers, first, rounds=1, replicates=20)
    like = _nearest(rough, known, profile_name(label))
    fit = fit_corrected(transfers, link_prior(known[like]))
    failed = columns["failed_connects"][rows]
    counted = np.isfinite(failed)
    if counted.sum() >= 100:
        fit.values["connect_success"] = _share(
            float(counted.sum()), float(failed[counted].sum() + counted.sum())
        )
    return FittedNetwork(
        label, profile_name(label), like, fit, matches(transfers, fit), known[like].radio.name
    )


def _share(hits: float, tries: float) -> FittedValue:
    """Return a share with its interval (Wilson 1927)."""
    z = 1.959964
    share = hits / tries
    middle = (share + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z / (1 + z * z / tries) * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    return FittedValue(share, middle - half, min(middle + half, 1.0))


def _nearest(rough: LinkFit, known: Mapping[str, NetworkProfile], name: str) -> str:
    told = [key for key in ("down_bps", "up_bps", "rtt_s") if rough.values[key].measured]
    if not told:
        return name if name in known else "4g_uk"

    def apart(profile: NetworkProfile) -> float:
        prior = link_prior(profile)
        far = sum(math.log(rough[key] / getattr(prior, key)) ** 2 for key in told)
        if rough.values["promotion_s"].measured:
            # The delay of an idle radio tells kinds of radio apart that are as fast as each other.
            far += ((rough["promotion_s"] - prior.promotion_s) / _OTHER_RADIO_S) ** 2
        return far

    return min((one for one in known if known[one].trace is None), key=lambda one: apart(known[one]))


def _fit_class(label: str, columns: Mapping[str, Any], rows: Ints, catalogue: Catalogue) -> FittedClass:
    rows = rows[(columns["ok"][rows] != 0.0) & np.isfinite(columns["seconds"][rows])]
    device = np.unique(columns["device"][rows].astype(str), return_inverse=True)[1].astype(np.int64)
    work = np.stack([columns[key][rows] for key in ("flops", "moved_bytes", "ops")], axis=1)
    steps = np.nan_to_num(columns["steps"][rows])
    seconds = columns["seconds"][rows]
    known = catalogue.devices
    name = profile_name(label)
    like = name if name in known else _DEFAULT_DEVICE
    fit = fit_tasks(device, seconds, work, steps, _task_prior(known[like]), replicates=1)
    if fit.kind == "free":
        rate = fit.values["flops_per_s"].value
        like = min(known, key=lambda one: abs(math.log(known[one].flops_1_thread / rate)))
    elif fit.kind == "scaled":
        # The profile that needs the least scaling.
        def scaling(one: str) -> float:
            prior = _task_prior(known[one])
            found = fit_tasks(device, seconds, work, steps, prior, replicates=1)
            return abs(math.log(found.values["flops_per_s"].value / prior.flops_per_s))

        if name not in known or scaling(name) > _NEAR:
            like = min(known, key=scaling)
    threads = known[like].flops_all_threads / known[like].flops_1_thread
    return FittedClass(
        label, name, like, fit_tasks(device, seconds, work, steps, _task_prior(known[like])), threads
    )


def _task_prior(profile: DeviceProfile) -> TaskPrior:
    return TaskPrior(
        profile.flops_1_thread, profile.memory_bytes_per_s, profile.op_overhead_s, profile.compute_sigma_log
    )


def _fit_check_ins(telemetry: Telemetry) -> AvailabilityFit | None:
    columns, rows = telemetry.columns, telemetry.of_kind("check-in")
    device = np.unique(columns["device"][rows].astype(str), return_inverse=True)[1].astype(np.int64)
    hour = (columns["time_s"][rows] / 3600.0 + np.nan_to_num(columns["utc_offset_h"][rows])) % 24.0
    return fit_availability(device, hour, columns["ok"][rows] != 0.0)


def _shares(
    labels: Mapping[str, npt.NDArray[Any]],
    rows: Ints,
    columns: Mapping[str, Any],
    fitted: set[str],
    names: Mapping[str, str],
) -> dict[tuple[str, str], float]:
    """Return the share of devices of each class on each network; one counts for each it was seen on."""
    seen: dict[tuple[str, str], set[str]] = {}
    for kind, network, device in zip(
        labels["class"][rows].tolist(),
        labels["network"][rows].tolist(),
        columns["device"][rows].tolist(),
        strict=True,
    ):
        if network in fitted:
            seen.setdefault((names[kind], names[network]), set()).add(device)
    whole = sum(len(devices) for devices in seen.values())
    return {pair: len(devices) / whole for pair, devices in sorted(seen.items())}


def _warnings(network: FittedNetwork) -> Iterator[str]:
    fit, label = network.fit, f"network {network.label!r}"
    yield from (f"{label}: {note}" for note in fit.notes)
    if fit.stalled > 0.1:
        yield f"{label}: {fit.stalled:.0%} of transfers are slower than rates explain: slow servers, retries?"
    if fit.values["jitter_s"].measured and fit["jitter_s"] > 0.5 * fit["rtt_s"]:
        yield f"{label}: jitter is above half a round trip; does 'seconds' hold the server's own time?"
    if fit["rtt_s"] < 1e-3:
        yield f"{label}: the round trip is below 1 ms; answers of a cache, or of this host?"
    for match in network.matches:
        if match.ks > 0.1 + match.by_chance:
            yield f"{label}, {match.direction}, {match.sizes}: the fit is {match.ks:.2f} (KS) off the times"


_NETWORK_KEYS: Final[Mapping[str, tuple[str, Quantity | None]]] = {
    "down": ("down_bps", RATE),
    "up": ("up_bps", RATE),
    "rtt": ("rtt_s", DURATION),
    "jitter": ("jitter_s", DURATION),
    "loss": ("loss", None),
    "rate_sigma": ("rate_sigma", None),
    "rate_rho": ("rate_rho", None),
    "slow_rate": ("slow_sigma", None),
    "device_sigma": ("device_sigma", None),
    "outage": ("outage_fraction", None),
    "connect_success": ("connect_success", None),
    "promotion": ("promotion_s", DURATION),
}
_DEVICE_KEYS: Final[Mapping[str, tuple[str, Quantity | None]]] = {
    "flops_1_thread": ("flops_per_s", COMPUTE_RATE),
    "memory_rate": ("memory_bytes_per_s", BYTE_RATE),
    "op_overhead": ("op_overhead_s", DURATION),
    "compute_sigma": ("compute_sigma", None),
}


def rounded(value: float) -> float:
    """Return a number with three digits."""
    return float(f"{value:.3g}")


def shown(value: float, quantity: Quantity | None) -> str:
    """Return a number as profiles write it, three digits and the unit."""
    return quantity.write(rounded(value)) if quantity is not None else f"{rounded(value):.6g}"


def _interval(estimate: FittedValue, quantity: Quantity | None) -> str:
    if not math.isfinite(estimate.low):
        return ""
    return f"95%: {shown(estimate.low, quantity)} to {shown(estimate.high, quantity)}"


def written(fitted: Fitted) -> str:
    """Return the profiles as a YAML file of the catalogue's format."""
    lines = [
        "# Fitted to telemetry. What a profile does not write, it takes from the one that it is like:",
        "# the data did not tell that (each such value is named as prior).",
        "sources:",
        f"  telemetry: {_text(f'{_file(fitted)}, fitted by recfleet')}",
    ]
    radios = [network for network in fitted.networks if network.fit.values["promotion_s"].measured]
    if radios:
        lines += ["", "radios:"]
        for network in radios:
            lines += _radio_lines(network)
    if fitted.networks:
        lines += ["", "networks:"]
        for network in fitted.networks:
            lines += _network_lines(network)
    if any(one.name != one.like or one.fit.kind != "none" for one in fitted.classes):
        lines += ["", "devices:"]
        for one in fitted.classes:
            lines += _device_lines(one)
    if fitted.availability is not None:
        values = fitted.availability.values
        note = (
            f"telemetry ({fitted.availability.check_ins} check-ins of {fitted.availability.devices} devices)"
        )
        mean = rounded(values["mean_available"].value)
        # A share available is 100 % at most at the peak.
        ratio = min(values["peak_to_trough"].value, 50.0)
        lines += [
            "", "availability:", "  fitted_availability:", "    kind: diurnal",
            f"    mean_available: {mean:.6g}", f"    peak_to_trough: {_floor(ratio, mean):.6g}",
            f"    peak_local_hour: {values['peak_local_hour'].value % 24.0:.2f}",
            f"    sources: {_text(note)}",
        ]  # fmt: skip
    if fitted.shares:
        lines += ["", "fleets:", "  fitted:", "    groups:"]
        lines += [
            f"      - {{device: {device}, network: {network}, share: {share:.9f}}}"
            for (device, network), share in _whole(fitted.shares).items()
        ]
        available = "always_on" if fitted.availability is None else "fitted_availability"
        lines += [f"    availability: {available}", "    sources: telemetry (devices seen)"]
    return "\n".join(lines) + "\n"


def _file(fitted: Fitted) -> str:
    return fitted.telemetry.name.rpartition("/")[2]


def _floor(ratio: float, mean: float) -> float:
    """Return a ratio, three digits, such that no hour has more than everybody available."""
    swing = min((ratio - 1.0) / (ratio + 1.0), 1.0 / mean - 1.0)
    most = (1.0 + swing) / (1.0 - swing) if swing < 1.0 else ratio
    return max(math.floor(most * 100.0) / 100.0, 1.0)


def _text(text: str) -> str:
    return "'" + "".join(mark if mark.isprintable() else "?" for mark in text).replace("'", "''") + "'"


def _whole(shares: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return shares of nine digits that sum to one."""
    result = {pair: round(share, 9) for pair, share in shares.items()}
    largest = max(result, key=lambda pair: result[pair])
    result[largest] = round(result[largest] + 1.0 - math.fsum(result.values()), 9)
    return {pair: share for pair, share in result.items() if share > 0.0}


def network_rows(network: FittedNetwork) -> Iterator[tuple[str, str, str, bool]]:
    """Yield key, value as text, interval, and whether it is estimated from data, of a network's keys."""
    fit = network.fit
    for key, (name, quantity) in _NETWORK_KEYS.items():
        estimate = fit.values[name]
        interval = _interval(estimate, quantity)
        if key == "slow_rate":
            time = fit.values["slow_time_s"]
            value = (
                f"{{sigma: {shown(estimate.value, None)}, correlation_time: {shown(time.value, DURATION)}}}"
            )
            interval += f"; {_interval(time, DURATION)}" if interval else ""
            value = value if estimate.value > 0.0 else ""
        elif key == "outage":
            mean = fit.values["outage_mean_s"]
            value = f"{{fraction: {shown(estimate.value, None)}, mean: {shown(mean.value, DURATION)}}}"
            interval += f"; {_interval(mean, DURATION)}" if interval and mean.measured else ""
            value = value if estimate.value > 0.0 else ""
        else:
            value = shown(estimate.value, quantity)
        yield key, value, interval, estimate.measured


def device_rows(one: FittedClass) -> Iterator[tuple[str, str, str, bool]]:
    """Yield key, value as text, interval, and whether it is estimated from data, of the rates of a class."""
    for key, (name, quantity) in _DEVICE_KEYS.items():
        estimate = one.fit.values[name]
        yield key, shown(estimate.value, quantity), _interval(estimate, quantity), estimate.measured


def _radio_lines(network: FittedNetwork) -> list[str]:
    promotion = network.fit.values["promotion_s"]
    source = f"telemetry (first contacts; {_interval(promotion, DURATION)})"
    return [
        f"  {network.name}_radio:",
        f"    like: {network.radio}",
        f"    promotion: {shown(promotion.value, DURATION)}",
        f"    sources: {{promotion: {_text(source)}}}",
    ]


def _network_lines(network: FittedNetwork) -> list[str]:
    fit = network.fit
    lines = [f"  {network.name}:", f"    like: {network.like}"]
    if fit.values["promotion_s"].measured:
        lines.append(f"    radio: {network.name}_radio")
    sources, prior = [], []
    for key, value, interval, measured in network_rows(network):
        if key == "promotion" and measured:
            continue
        if not measured:
            prior.append(key)
            continue
        if not value:
            # None: what the other profile has is removed.
            lines.append(f"    {key}:")
            continue
        lines.append(f"    {key}: {value}")
        counted = f"{fit.transfers} transfers, {fit.devices} devices"
        sources.append(
            f"      {key}: {_text(f'telemetry ({counted}' + (f'; {interval}' if interval else '') + ')')}"
        )
    return [
        *lines,
        f"    note: {_text(_prior_note(network.like, prior))}",
        *(["    sources:"] if sources else []),
        *sources,
    ]


def _device_lines(one: FittedClass) -> list[str]:
    if one.name == one.like and one.fit.kind == "none":
        return []
    lines = [f"  {one.name}:", f"    like: {one.like}"]
    sources, prior = [], []
    if one.fit.kind == "none":
        prior = list(_DEVICE_KEYS)
    else:
        for key, value, interval, _ in device_rows(one):
            lines.append(f"    {key}: {value}")
            how = "" if one.fit.kind == "free" else f", one scale of {one.like}"
            counted = f"{one.fit.tasks} tasks, {one.fit.devices} devices{how}"
            sources.append(
                f"      {key}: {_text(f'telemetry ({counted}' + (f'; {interval}' if interval else '') + ')')}"
            )
        all_threads = one.fit.values["flops_per_s"].value * one.threads
        lines.append(f"    flops_all_threads: {shown(all_threads * 1.001, COMPUTE_RATE)}")
        sources.append(
            f"      flops_all_threads: {_text(f'telemetry (one thread, and the ratio of {one.like})')}"
        )
    return [
        *lines, f"    note: {_text(_prior_note(one.like, [*prior, _NEVER_TOLD]))}",
        *(["    sources:"] if sources else []), *sources,
    ]  # fmt: skip


def _prior_note(like: str, prior: list[str]) -> str:
    return f"prior, of {like}: {', '.join(prior)}" if prior else "all told by the data, but for the radio"
