from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from metrics_samples import (
    NAMES,
    facts,
    sample_evaluation,
    sample_round,
    three_device_log,
    three_devices,
    write_run,
)

from coordinator.results.tables.batches import round_batches
from coordinator.results.tables.digest import RunDigest, TableDigest
from coordinator.results.tables.reader import RunFormatError, _stream_prefix, open_run
from coordinator.results.tables.schemas import OLDEST_VERSION, SCHEMA_VERSION, SCHEMAS, VERSION_KEY
from coordinator.results.tables.writer import RunWriter, stream_path

ROOT = Path(__file__).resolve().parents[2]


def test_a_finished_run_is_parquet_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{table}.parquet" for table in SCHEMAS)
    run = open_run(tmp_path)
    assert run.complete
    assert run.read("rounds")["round"].to_pylist() == [1, 2, 3]
    assert run.read("device_rounds").num_rows == 9
    assert run.read("events").num_rows == 60
    assert run.read("evaluations")["round"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3]
    metadata = pq.read_schema(tmp_path / "device_rounds.parquet").metadata
    assert metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_values_come_back_as_written(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2)
    written = [sample_round(number) for number in (1, 2)]
    run = open_run(tmp_path)
    for table in ("rounds", "device_rounds", "events"):
        expected = [row for batches in written for row in getattr(batches, table).to_pylist()]
        assert run.read(table).to_pylist() == expected


def test_columns_can_be_chosen_in_any_order(tmp_path: Path) -> None:
    write_run(tmp_path / "done", rounds=1)
    write_run(tmp_path / "killed", rounds=1, finish=False)
    for name in ("done", "killed"):
        table = open_run(tmp_path / name).read("device_rounds", ["up_bytes", "device"])
        assert table.column_names == ["up_bytes", "device"]
        assert table["device"].to_pylist() == [100, 101, 102]


def test_the_digest_is_that_of_the_tables_read_back(tmp_path: Path) -> None:
    digest = write_run(tmp_path, rounds=3)
    run = open_run(tmp_path)
    again = RunDigest()
    for table in SCHEMAS:
        again.tables[table].update(run.read(table))
    assert again.hexdigest() == digest


def test_the_digest_of_known_rounds_stays_the_same(tmp_path: Path) -> None:
    # Changes only together with the schema's version: digests are compared across releases.
    assert write_run(tmp_path, rounds=3) == "12cae50a176ebe7e64870eb04d644e77"


def test_the_digest_does_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    cohort, log = three_devices(), three_device_log()
    whole = pa.Table.from_batches(
        [round_batches(facts(number), cohort, NAMES, log.columns()).device_rounds for number in range(1, 101)]
    )
    digests = set()
    for rows_at_once in (1, 50, 10_000):
        monkeypatch.setattr("coordinator.results.tables.digest._ROWS_AT_ONCE", rows_at_once)
        for size in (7, 40, whole.num_rows):
            digest = TableDigest("device_rounds")
            for piece in whole.combine_chunks().to_batches(max_chunksize=size):
                cut = int(rng.integers(0, piece.num_rows + 1))
                digest.update(piece.slice(0, cut))
                digest.update(piece.slice(cut))
            digests.add(digest.digest())
    assert len(digests) == 1


def test_the_digest_keeps_few_batches_waiting() -> None:
    digest = TableDigest("rounds")
    waiting = []
    for number in range(1, 300):
        digest.update(sample_round(number).rounds)
        waiting.append(len(digest._waiting))
    assert max(waiting) < 100


def test_the_digest_does_not_depend_on_the_numbering_of_a_dictionary() -> None:
    batch = sample_round(1).device_rounds
    position = batch.schema.get_field_index("class")
    other = pa.DictionaryArray.from_arrays(pa.array([2, 0, 0], pa.int32()), ["budget", "unused", "flagship"])
    columns = [*batch.columns[:position], other, *batch.columns[position + 1 :]]
    renumbered = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    assert renumbered.to_pylist() == batch.to_pylist()
    digests = []
    for one in (batch, renumbered):
        digest = TableDigest("device_rounds")
        digest.update(one)
        digests.append(digest.digest())
    assert digests[0] == digests[1]


def _digest(table: str, batch: pa.RecordBatch) -> bytes:
    digest = TableDigest(table)
    digest.update(batch)
    return digest.digest()


@pytest.mark.parametrize("column", [field.name for field in SCHEMAS["rounds"]])
def test_the_digest_sees_every_column_but_the_measured(column: str) -> None:
    batch = sample_round(1).rounds
    position = batch.schema.get_field_index(column)
    kind = batch.schema.field(column).type
    text = pa.types.is_dictionary(kind)
    changed = pa.array(["other" if text else (batch.column(column)[0].as_py() or 0) + 1]).cast(kind)
    columns = [*batch.columns[:position], changed, *batch.columns[position + 1 :]]
    altered = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    same = _digest("rounds", altered) == _digest("rounds", batch)
    assert same == (column in {"wall_s", "host_rss_bytes"})


def test_null_and_nan_and_zero_are_three_values() -> None:
    batch = sample_round(1).rounds
    position = batch.schema.get_field_index("loss")
    digests = set()
    for value in (None, float("nan"), 0.0):
        columns = [*batch.columns[:position], pa.array([value], pa.float64()), *batch.columns[position + 1 :]]
        digests.add(_digest("rounds", pa.RecordBatch.from_arrays(columns, schema=batch.schema)))
    assert len(digests) == 3


@pytest.mark.few(1)
@pytest.mark.parametrize("table", ["rounds", "device_rounds", "events"])
def test_a_stream_cut_at_any_byte_of_its_last_round_reads_up_to_the_round_before(
    tmp_path: Path, table: str
) -> None:
    write_run(tmp_path / "two", rounds=2, finish=False)
    write_run(tmp_path / "three", rounds=3, finish=False)
    two = open_run(tmp_path / "two").read(table).to_pylist()
    path = stream_path(tmp_path / "three", table)
    whole = path.read_bytes()
    # Both end with the same eight bytes that close a stream; a killed process did not write them.
    shorter = stream_path(tmp_path / "two", table).stat().st_size - 8
    longer = len(whole) - 8
    assert shorter < longer
    for size in range(longer - 1, shorter - 1, -1):
        os.truncate(path, size)
        assert sum(1 for _ in _stream_prefix(path)) == 2, f"cut at byte {size}"
        if size % 50 == 0:
            assert open_run(tmp_path / "three").read(table).to_pylist() == two, f"cut at byte {size}"
    path.write_bytes(whole[:longer])
    assert sum(1 for _ in _stream_prefix(path)) == 3
    assert len(open_run(tmp_path / "three").read(table)) > len(two)


def test_a_stream_cut_in_its_schema_is_an_empty_table(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=1, finish=False)
    path = stream_path(tmp_path, "rounds")
    whole = path.read_bytes()
    for size in (0, 1, 7, 100, 1000):
        path.write_bytes(whole[:size])
        run = open_run(tmp_path)
        for table in SCHEMAS:
            rows = run.read(table)
            # Nothing but the evaluation of the initial model is of a finished round.
            assert rows.num_rows == (2 if table == "evaluations" else 0)
            assert rows.column_names == SCHEMAS[table].names


def test_rows_of_an_unfinished_round_are_left_out(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1))
        unfinished = sample_round(2)
        writer.write("events", unfinished.events)
        writer.write("device_rounds", unfinished.device_rounds)
    run = open_run(tmp_path)
    assert not run.complete
    for table in ("events", "device_rounds"):
        assert set(run.read(table)["round"].to_pylist()) == {1}


def test_kill_9_leaves_every_finished_round_readable(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, pathlib
        sys.path[:0] = sys.argv[2:]
        from metrics_samples import sample_round
        from coordinator.results.tables.writer import RunWriter
        writer = RunWriter(pathlib.Path(sys.argv[1]))
        number = 0
        while True:
            number += 1
            writer.write_round(sample_round(number))
            print(number, flush=True)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(ROOT), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = 0
        while said < 25:
            said = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
    # The last number may have been cut short on its way out; the one before it was whole.
    said = max([said, *(int(number) for number in rest[:-1])])
    run = open_run(tmp_path)
    rounds = run.read("rounds")["round"].to_pylist()
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) >= said
    assert run.read("device_rounds").num_rows == 3 * len(rounds)
    assert run.read("events").num_rows == 20 * len(rounds)


def test_a_run_killed_during_the_conversion_is_readable(tmp_path: Path) -> None:
    write_run(tmp_path / "done", rounds=2)
    write_run(tmp_path / "killed", rounds=2, finish=False)
    (tmp_path / "done" / "rounds.parquet").rename(tmp_path / "killed" / "rounds.parquet")
    stream_path(tmp_path / "killed", "rounds").unlink()
    (tmp_path / "killed" / "events.parquet.tmp").write_bytes(b"half")
    run = open_run(tmp_path / "killed")
    assert not run.complete
    assert run.read("rounds").num_rows == 2
    assert run.read("events").num_rows == 40


def test_without_events_that_table_is_empty_and_the_others_are_not(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2, events=False)
    run = open_run(tmp_path)
    assert run.read("events").num_rows == 0
    assert run.read("device_rounds").num_rows == 6


def test_many_small_rounds_become_few_row_groups(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=40)
    assert pq.ParquetFile(tmp_path / "device_rounds.parquet").num_row_groups == 1


def test_new_names_in_later_rounds_are_kept(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1, phase="calm"))
        writer.write_round(sample_round(2, phase="storm"))
        writer.write("evaluations", sample_evaluation(2, phase="storm"))
        writer.finish()
    run = open_run(tmp_path)
    assert run.read("rounds")["phase"].to_pylist() == ["calm", "storm"]
    assert run.read("device_rounds")["phase"].to_pylist() == ["calm"] * 3 + ["storm"] * 3


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFormatError, match="no such directory"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunFormatError, match="not a run directory"):
        open_run(tmp_path)
    write_run(tmp_path, rounds=1)
    (tmp_path / "rounds.parquet").write_bytes(b"something else")
    with pytest.raises(RunFormatError, match=r"rounds\.parquet: not a readable Parquet file"):
        open_run(tmp_path).read("rounds")


def test_columns_that_an_older_version_lacked_or_understood_otherwise_are_null(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2)
    path = tmp_path / "rounds.parquet"
    table = pq.read_table(path)
    ones = pa.array([1.0, 2.0])
    older = table.set_column(table.column_names.index("epsilon"), "epsilon", ones).drop("epsilon_replace_one")
    pq.write_table(older.replace_schema_metadata({VERSION_KEY: str(OLDEST_VERSION).encode()}), path)
    rounds = open_run(tmp_path).read("rounds")
    assert rounds.column_names == table.column_names
    new = ["epsilon", "epsilon_replace_one"]
    assert [rounds[name].null_count for name in new] == [2, 2]
    assert rounds.drop(new).to_pylist() == table.drop(new).to_pylist()
    assert open_run(tmp_path).read("rounds", ["round", "epsilon"])["round"].to_pylist() == [1, 2]
    # Of the newest version it would be damage.
    pq.write_table(older.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()}), path)
    with pytest.raises(RunFormatError, match="is damaged, it has no column 'epsilon_replace_one'"):
        open_run(tmp_path).read("rounds")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=1)
    path = tmp_path / "rounds.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"99"}), path)
    with pytest.raises(RunFormatError, match="schema version 99"):
        open_run(tmp_path).read("rounds")
    pq.write_table(table.replace_schema_metadata(None), path)
    with pytest.raises(RunFormatError, match="no schema version"):
        open_run(tmp_path).read("rounds")
