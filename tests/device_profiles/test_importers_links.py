from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_profiles.errors import TraceError
from device_profiles.importers.link_files import PACKET_BITS, read_link_csv, read_mahimahi


def write(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_mahimahi_counts_opportunities_in_bins(tmp_path: Path) -> None:
    # Two packets in the first 100 ms, one exactly on its end (it belongs to what ends there), one at 250 ms.
    down = write(tmp_path, "10\n10\n100\n250\n300\n", "down")
    up = write(tmp_path, "300\n", "up")
    trace = read_mahimahi(down, up, rtt_s=0.04, loss=0.01)
    assert trace.period_s == 0.3
    np.testing.assert_allclose(trace.times_s, [0.0, 0.1, 0.2])
    np.testing.assert_allclose(trace.down_bps * 0.1 / PACKET_BITS, [3, 0, 2])
    np.testing.assert_allclose(trace.up_bps * 0.1 / PACKET_BITS, [0, 0, 1])
    assert trace.bits_until(0.3, "down") == pytest.approx(5 * PACKET_BITS, rel=1e-12)
    assert trace.rtt_at(0.15) == 0.04
    assert trace.loss_at(0.15) == 0.01


def test_a_constant_mahimahi_trace_is_its_rate(tmp_path: Path) -> None:
    # One packet each millisecond is 12 Mbit/s.
    path = write(tmp_path, "".join(f"{t}\n" for t in range(1, 2001)))
    trace = read_mahimahi(path, path, rtt_s=0.04)
    np.testing.assert_allclose(trace.down_bps, 12e6)
    assert trace.time_for_bits(0.0, 60e6, "down") == pytest.approx(5.0)


def test_the_shorter_mahimahi_direction_repeats(tmp_path: Path) -> None:
    down = write(tmp_path, "500\n1000\n", "down")
    up = write(tmp_path, "100\n400\n", "up")
    trace = read_mahimahi(down, up, rtt_s=0.04, bin_s=0.2)
    # Twice the one is five times the other: 100 400 | 500 800 | 900 1200 | 1300 1600 | 1700 2000
    assert trace.period_s == 2.0
    np.testing.assert_allclose(trace.up_bps * 0.2 / PACKET_BITS, np.ones(10))
    np.testing.assert_allclose(trace.down_bps * 0.2 / PACKET_BITS, [0, 0, 1, 0, 1, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("down_ms", "up_ms"), [(1000, 1000), (60_000, 59_900), (60_000, 40_001), (700, 60_000), (7919, 7907)]
)
def test_the_mean_rate_of_a_mahimahi_direction_is_that_of_its_file(
    down_ms: int, up_ms: int, tmp_path: Path
) -> None:
    generator = np.random.default_rng(down_ms)
    packets = {}
    for name, length_ms in (("down", down_ms), ("up", up_ms)):
        # Fast at first, slow at last: whatever is cut off would be missed.
        moments = np.sort((length_ms * generator.random(length_ms // 10) ** 3).astype(np.int64))
        write(tmp_path, "".join(f"{t}\n" for t in (*moments.tolist(), length_ms)), name)
        packets[name] = len(moments) + 1
    trace = read_mahimahi(tmp_path / "down", tmp_path / "up", rtt_s=0.04)
    for name, rates, length_ms in (("down", trace.down_bps, down_ms), ("up", trace.up_bps, up_ms)):
        own_bps = packets[name] * PACKET_BITS / (length_ms / 1000)
        assert rates.mean() == pytest.approx(own_bps, rel=1e-12)
    longer_s = max(down_ms, up_ms) / 1000
    assert trace.period_s / longer_s == pytest.approx(round(trace.period_s / longer_s))


def test_very_long_mahimahi_traces_come_out_as_even_as_the_bins_allow(tmp_path: Path) -> None:
    down = write(tmp_path, f"{20 * 86_400_000}\n", "down")
    up = write(tmp_path, f"{19 * 86_400_000}\n", "up")
    with pytest.raises(TraceError, match="raise bin_s"):
        read_mahimahi(down, up, rtt_s=0.04)
    # Ten million bins of a second are five times the one; once the one for once the other is as near as any.
    trace = read_mahimahi(down, up, rtt_s=0.04, bin_s=1.0)
    assert trace.period_s == 20 * 86_400
    assert trace.up_bps.mean() == pytest.approx(PACKET_BITS / (19 * 86_400), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace: empty"),
        ("5\n3\n", "trace:2: 3 ms comes after 5 ms"),
        ("0\n0\n", "trace:2: the last time is 0 ms"),
        ("1\n\n2\n", "trace:2: expected a whole number of milliseconds, found 'an empty line'"),
        ("1\n2.5\n", "trace:2: expected a whole number of milliseconds, found '2.5'"),
        ("-1\n", "trace:1: expected a whole number"),
        ("1\nx\n", "trace:2: expected a whole number"),
        ("1\n٣\n", "trace:2: expected a whole number"),
        ("9999999999\n", "trace:1: 9999999999 ms is beyond 30 days"),
        (b"1\n\xff\n", "trace:2: not UTF-8 text"),
    ],
)
def test_files_that_are_no_mahimahi_trace(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_mahimahi(path, path, rtt_s=0.04)
    assert message in str(caught.value)


def test_a_mahimahi_trace_of_too_many_bins(tmp_path: Path) -> None:
    path = write(tmp_path, "2000000000\n")
    with pytest.raises(TraceError, match="raise bin_s"):
        read_mahimahi(path, path, rtt_s=0.04)
    with pytest.raises(ValueError, match="bin_s must be above zero"):
        read_mahimahi(path, path, rtt_s=0.04, bin_s=0.0)


def test_link_csv(tmp_path: Path) -> None:
    path = write(tmp_path, "t_s,down_mbps,up_mbps,rtt_ms,loss\n0,8,1,20,0\n1,0,1,500,0.1\n3,2,1,100,0.01\n")
    trace = read_link_csv(path)
    assert trace.times_s.tolist() == [0.0, 1.0, 3.0]
    assert trace.down_bps.tolist() == [8e6, 0.0, 2e6]
    assert trace.up_bps.tolist() == [1e6, 1e6, 1e6]
    assert trace.rtt_s.tolist() == [0.02, 0.5, 0.1]
    assert trace.loss.tolist() == [0.0, 0.1, 0.01]
    assert trace.period_s == 5.0
    assert read_link_csv(path, period_s=60.0).period_s == 60.0


def test_link_csv_columns_in_any_order_without_loss(tmp_path: Path) -> None:
    text = "\ufeffrtt_ms, up_mbps ,t_s,down_mbps\r\n20,1,0,8\r\n\r\n30,2,1,9\r\n"
    trace = read_link_csv(write(tmp_path, text))
    assert trace.down_bps.tolist() == [8e6, 9e6]
    assert trace.rtt_s.tolist() == [0.02, 0.03]
    assert trace.loss.tolist() == [0.0, 0.0]


HEAD = "t_s,down_mbps,up_mbps,rtt_ms,loss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace: empty; the first line names the columns"),
        (HEAD, "trace: no rows below the header"),
        ("t_s,down_mbps,up_mbps\n", "trace:1: column 'rtt_ms' is missing"),
        ("t_s,down_mbps,up_mbps,rtt_ms,rtt_ms\n", "trace:1: column 'rtt_ms' appears twice"),
        ("t_s,down_kbps,up_mbps,rtt_ms\n", "trace:1: unknown column 'down_kbps'"),
        (HEAD + "0,1,1,20\n", "trace:2: 4 values, but the header names 5 columns"),
        (HEAD + "0,1,1,20,0\n1,1 Mbit/s,1,20,0\n", "trace:3: down_mbps: '1 Mbit/s' is not a number"),
        (HEAD + "0,nan,1,20,0\n", "trace:2: down_mbps: 'nan' is not a number"),
        (HEAD + "0,1e400,1,20,0\n", "trace:2: down_mbps: '1e400' is not a number"),
        (HEAD + "0,-1,1,20,0\n", "trace:2: down_mbps: -1 is negative"),
        (HEAD + "0,1,1,0,0\n", "trace:2: rtt_ms: a round trip takes some time"),
        (HEAD + "0,1,1,20,2\n", "trace:2: loss: 2 must be below 1; write 0.02 for 2%"),
        (HEAD + "5,1,1,20,0\n", "trace:2: t_s: the first row must be at 0"),
        (HEAD + "0,1,1,20,0\n0,1,1,20,0\n", "trace:3: t_s: 0 does not come after 0"),
        (HEAD + "0,1,1,20,0\n", "trace:2: one row alone does not say how long it lasts"),
        (HEAD + "0,0,1,20,0\n1,0,1,20,0\n", "trace: down_bps: the trace never carries anything down"),
        (HEAD + '0,"1,1,20,0\n', "trace:2: not a line of comma-separated values"),
        (HEAD.encode() + b"\xff\n", "trace:2: not UTF-8 text"),
    ],
)
def test_files_that_are_no_link_csv(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_link_csv(path)
    assert message in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_link_csv(tmp_path / "none.csv")
