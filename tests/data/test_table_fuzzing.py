"""Damaged tables: whatever the bytes are, they are read to a valid store or refused by a DataError."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_table_layouts import LAYOUTS, ROWS, write

from edge.core.errors import DataError
from edge.data.table.options import TableOptions
from edge.data.table.reading import read_ratings

_PIECES = (
    b"\n", b"\r\n", b"\r", b",", b";", b"\t", b'"', b'\\"', b"\\", b"'", b"\0", b"#", b"%", b" ",
     b"\xff", b"\xfe\xff",
    b"\xef\xbb\xbf", b"\xe2\x82", b"nan", b"inf", b"1e400", b"-", b"1,5", b"99999999999999999999",
     b"{", b"}", b"[",
    b"]", b"null", b'{"user": 1}', b"::", b"|", b"\x01", b"\x1f", b"2008-13-45", b"9999-12-31",
     b"0000-00-00", b"sep=;\n",
    b"17:\n", b"user,item,rating\n", b"\xed\xa0\x80", "Ünïcode\u2028".encode(),
)  # fmt: skip


def _damaged(content: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at = (
            int(rng.integers(0, len(data) + 1))
            if rng.random() < 0.7
            else int(rng.integers(0, min(len(data), 80) + 1))
        )
        match int(rng.integers(0, 6)):
            case 0:
                data[at:at] = _PIECES[int(rng.integers(0, len(_PIECES)))]
            case 1:
                del data[at : at + int(rng.integers(1, 40))]
            case 2 if at < len(data):
                data[at] = int(rng.integers(0, 256))
            case 3:
                del data[at:]
            case 4:
                start = int(rng.integers(0, len(data) + 1))
                data[at:at] = data[start : start + int(rng.integers(1, 200))]
            case _:
                old = (b",", b"\t", b";", b"1", b"\n")[int(rng.integers(0, 5))]
                data = bytearray(bytes(data).replace(old, _PIECES[int(rng.integers(0, len(_PIECES)))], 3))
    return bytes(data)


def _options(rng: np.random.Generator) -> dict[str, Any]:
    choices: dict[str, tuple[Any, ...]] = {
        "columns": (
            {"user": "1", "item": "2", "rating": "3"},
            {"time": "4"},
            {"rating": "none"},
            {"user": "user"},
        ),
        "delimiter": (",", ";", "::", "\t", " ", "ab"),
        "header": (True, False),
        "quotes": (True, False),
        "encoding": ("latin-1", "utf-16", "utf-8", "shift_jis", "utf-7"),
        "decimal": (".", ","),
        "skip_bad_rows": (True,),
        "duplicates": ("first", "mean", "error"),
        "scale": ((1.0, 5.0),),
    }
    taken = {
        name: values
        for name, values in choices.items()
        if rng.random() < (0.6 if name == "skip_bad_rows" else 0.08)
    }
    return {name: values[int(rng.integers(0, len(values)))] for name, values in taken.items()}


def _try(folder: Path, seed: int) -> bool:
    """Read one damaged table; return whether it was read."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[int(rng.integers(0, len(LAYOUTS)))]
    path = write(folder, layout, ROWS)
    path.write_bytes(_damaged(path.read_bytes(), rng))
    options = {**layout.options, **_options(rng)}
    how = "auto" if rng.random() < 0.8 else layout.format
    read, refusal = None, None
    try:
        read = read_ratings(path, how, TableOptions(**options))
    except DataError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"seed {seed}, {layout.name}, {options}: {error!r}") from error
    finally:
        path.unlink()
    if read is None:
        assert refusal is not None
        assert refusal.startswith(str(path)), f"seed {seed}: {refusal}"
        assert refusal.isprintable(), f"seed {seed}: {refusal!r}"
        return False
    read.store.validate()
    assert read.store.n_ratings == read.rows - read.duplicates
    assert np.isfinite(read.store.decoded()).all()
    read.line()
    return True


def test_damaged_tables_are_read_or_refused(tmp_path: Path) -> None:
    read = [_try(tmp_path, seed) for seed in range(120)]
    assert 12 < sum(read) < 108, "the damage is too little or too much to test anything"


@pytest.mark.slow
def test_damaged_tables_for_longer(tmp_path: Path) -> None:
    end_s = time.monotonic() + float(os.environ.get("RECFLEET_FUZZ_S", "5"))
    seed = 1_000
    while time.monotonic() < end_s:
        _try(tmp_path, seed)
        seed += 1
