"""Reading tables of ratings: time against pyarrow reading the same file alone, memory against the store made.

    python benchmarks/tables.py [--rows 50000000] [--repeats 3] [--kinds csv text quoted parquet text-parquet]

Every reading has a process of its own; the two take turns, and the least of each figure counts. On a crowded
machine go by the time of the processor.
Memory is the peak of the process above what it had after reading a hundred rows, as Linux has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from edge.data.table.reading import read_ratings

KINDS = ("csv", "text", "quoted", "parquet", "text-parquet")
"""Ids are whole numbers, but text in ``text``, ``text-parquet`` and, as pyarrow writes it by default,
``quoted``."""
_PART_ROWS = 2_000_000


def write(folder: Path, kind: str, rows: int) -> Path:
    """Write ratings of ``rows / 100`` users in random order, by parts."""
    path = folder / f"{kind}.{'parquet' if kind.endswith('parquet') else 'csv'}"
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, _PART_ROWS):
        size = min(_PART_ROWS, rows - start)
        users = pa.array((rng.beta(1, 3, size) * rows / 100).astype(np.int64))
        items = pa.array((rng.beta(1, 4, size) * 100_000).astype(np.int64))
        if kind in ("text", "quoted", "text-parquet"):
            users, items = (
                pc.binary_join_element_wise(mark, ids.cast(pa.string()), "")
                for mark, ids in (("u", users), ("i", items))
            )
        table = pa.table(
            {
                "user": users,
                "item": items,
                "rating": rng.integers(1, 11, size) / 2,
                "timestamp": rng.integers(10**9, 16 * 10**8, size),
            }
        )
        if writer is None:
            style = pacsv.WriteOptions(quoting_style="none" if kind == "text" else "needed")
            if path.suffix == ".parquet":
                writer = pq.ParquetWriter(path, table.schema)
            else:
                writer = pacsv.CSVWriter(path, table.schema, write_options=style)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path


def _peak_bytes() -> int:
    """Return the peak of this process; ``ru_maxrss`` would be no less than its parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure(path: Path, small: Path, who: str) -> dict[str, float]:
    """Read in this process; return seconds, bytes at the peak, and bytes of the store."""

    def read(file: Path) -> int:
        if who == "recfleet":
            return read_ratings(file).store.nbytes
        return (pq.read_table if file.suffix == ".parquet" else pacsv.read_csv)(file).nbytes

    read(small)
    before = _peak_bytes()
    start_s, processor_s = time.perf_counter(), time.process_time()
    kept = read(path)
    return {
        "s": time.perf_counter() - start_s,
        "processor_s": time.process_time() - processor_s,
        "peak": _peak_bytes() - before,
        "kept": kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        path, small, who = arguments.measure
        print(json.dumps(measure(Path(path), Path(small), who)))
        return
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            (Path(name) / "small").mkdir(exist_ok=True)
            small = write(Path(name) / "small", kind, 100)
            path = write(Path(name), kind, arguments.rows)
            found: dict[str, list[dict[str, float]]] = {"recfleet": [], "pyarrow": []}
            for _ in range(arguments.repeats):
                for who, runs in found.items():
                    command = [sys.executable, __file__, "--measure", str(path), str(small), who]
                    runs.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            ours, theirs = (
                {name: min(run[name] for run in runs) for name in runs[0]} for runs in found.values()
            )
            print(
                f"{kind}: {arguments.rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB\n"
                f"  time       {ours['s']:.2f} s, pyarrow {theirs['s']:.2f} s, ratio "
                f"{ours['s'] / theirs['s']:.2f}\n"
                f"  processor  {ours['processor_s']:.2f} s, pyarrow {theirs['processor_s']:.2f} s, ratio "
                f"{ours['processor_s'] / theirs['processor_s']:.2f}\n"
                f"  peak       {ours['peak'] / 1e6:,.0f} MB, pyarrow {theirs['peak'] / 1e6:,.0f} MB; store "
                f"{ours['kept'] / 1e6:,.0f} MB, peak / store {ours['peak'] / ours['kept']:.2f}"
            )
            path.unlink()


if __name__ == "__main__":
    main()
