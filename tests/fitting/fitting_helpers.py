"""Known networks, and telemetry of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from edge.fitting.links import FittedValue, LinkFit, LinkPrior, Transfers
from edge.fitting.rates import RateSpread
from edge.fitting.replay import replay

WRONG = LinkPrior(10e6, 4e6, 0.05, 0.01, 0.002, RateSpread(0.0, 0.0, 0.36, 0.8, 60.0), 0.0, 5.0, 0.3, 1.0)
"""A prior that is far from every network of the tests."""


def network(**values: float) -> LinkFit:
    whole = {
        "down_bps": 29.5e6,
        "up_bps": 7.6e6,
        "rtt_s": 0.021,
        "jitter_s": 0.005,
        "loss": 0.001,
        "rate_sigma": 0.6,
        "rate_rho": 0.8,
        "slow_sigma": 0.0,
        "slow_time_s": 60.0,
        "device_sigma": 0.0,
        "outage_fraction": 0.0,
        "outage_mean_s": 1.0,
        "promotion_s": 0.26,
    } | values
    return LinkFit({name: FittedValue(value) for name, value in whole.items()}, 0, 0)


def transfers(truth: LinkFit, devices: int, seed: int = 1, **changes: Any) -> Transfers:
    """Return measured transfers: three sessions of eight a device, sizes of 200 B to 2 MB."""
    draw = np.random.default_rng(seed)
    shape = (devices, 3, 8)
    begins = np.sort(draw.uniform(0, 7 * 86_400.0, shape[:2]), axis=1)[..., None]
    gaps = 0.05 + draw.exponential(np.where(draw.random(shape) < 0.5, 2.0, 30.0))
    gaps[..., 0] = 0.0
    first = np.zeros(shape, dtype=np.int64)
    first[..., 0] = 1
    n = devices * 24
    size = np.floor(np.exp(draw.uniform(math.log(200), math.log(2e6), n)))
    lost = draw.random(n) < 1.0 - (1.0 - truth["loss"]) ** -(-size // 1448)
    rows = Transfers(
        device=np.repeat(np.arange(devices), 24),
        start_s=np.sort((begins + np.cumsum(gaps, axis=2)).reshape(devices, -1), axis=1).ravel(),
        up=draw.random(n) < 0.5,
        size=size,
        seconds=np.zeros(n),
        trips=np.full(n, 0.5),
        handshakes=2 * first.ravel(),
        cold=first.ravel(),
        rtt_s=np.full(n, np.nan),
        resent=np.where(lost, 1, 0),
    )
    rows = dataclasses.replace(rows, **changes)
    return dataclasses.replace(rows, seconds=replay(rows, truth, seed))
