"""Damage to the files of a run: what disks, tools and people do to them, drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.results.tables.schemas import VERSION_KEY

FINITE: Final = (1.7e308, -1.7e308, 5e-324, -0.0, 1e16, 2**63 - 1, -(2**63), 2**31, 0, -1, 1)
"""Finite numbers at the ends of their ranges."""
_JSON: Final = (None, True, "text", "", [], {}, [None], {"a": 1}, *FINITE)

Damage = Callable[[Path, random.Random], str]
"""Damages a file; returns what was done to it."""


def truncated(file: Path, draw: random.Random) -> str:
    """Cut the file short."""
    contents = file.read_bytes()
    file.write_bytes(contents[: draw.randrange(len(contents))])
    return f"cut to {file.stat().st_size} bytes"


def emptied(file: Path, _: random.Random) -> str:
    """Leave nothing of the contents."""
    file.write_bytes(b"")
    return "emptied"


def garbled(file: Path, draw: random.Random) -> str:
    """Change some bytes, or all of them."""
    contents = bytearray(file.read_bytes())
    if draw.random() < 0.3:
        contents = bytearray(draw.randbytes(max(len(contents), 8)))
    for _ in range(draw.randint(1, 8)):
        contents[draw.randrange(len(contents))] = draw.randrange(256)
    file.write_bytes(contents)
    return "garbled"


def missing(file: Path, _: random.Random) -> str:
    """Remove the file."""
    file.unlink()
    return "missing"


def a_directory(file: Path, _: random.Random) -> str:
    """Put a directory in its place."""
    file.unlink()
    file.mkdir()
    return "a directory"


def unreachable(file: Path, _: random.Random) -> str:
    """Put a link in its place that the system refuses to follow: to itself."""
    file.unlink()
    file.symlink_to(file.name)
    return "a link to itself"


def forbidden(file: Path, _: random.Random) -> str:
    """Take the right to read it; root keeps it."""
    file.chmod(0)
    return "forbidden"


ANY_FILE: Final[tuple[Damage, ...]] = (
    *(truncated, emptied, garbled, missing, a_directory, unreachable),
    *((forbidden,) if os.geteuid() else ()),
)


def another_value(file: Path, draw: random.Random) -> str:
    """Put another value at a place of a JSON file, or leave a key out."""
    whole = {"": json.loads(file.read_text(encoding="utf-8"))}
    node: Any = whole
    key: Any = ""
    path = []
    while True:
        path.append(str(key))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or (node is not whole and draw.random() < 0.4):
            break
        node, key = inner, draw.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
    if node is not whole and draw.random() < 0.2:
        del node[key]
        said = "left out"
    else:
        node[key] = draw.choice(_JSON)
        said = repr(node[key])
    file.write_text(json.dumps(whole.get("")), encoding="utf-8")
    return f"{'.'.join(path)[1:]} {said}"


def another_line(file: Path, draw: random.Random) -> str:
    """Repeat, remove or change a line of a text file."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    at = draw.randrange(len(lines))
    lines[at] = draw.choice(
        ("", lines[at] * 2, lines[at].replace(":", ""), "? [\n", lines[at].replace("1", "x"))
    )
    file.write_text("".join(lines), encoding="utf-8")
    return f"line {at + 1} {lines[at]!r}"


def another_column(file: Path, draw: random.Random) -> str:
    """Take a column of a table away, or give it another type."""
    table = pq.read_table(file)
    at = draw.randrange(len(table.column_names))
    name = table.column_names[at]
    if draw.random() < 0.3:
        table, said = table.drop([name]), "left out"
    else:
        kind = draw.choice((pa.string(), pa.float64(), pa.int32(), pa.bool_(), pa.list_(pa.int64())))
        other = pa.nulls(len(table), kind)
        if draw.random() < 0.5 and not pa.types.is_nested(kind):
            filler = {"string": "text", "double": 1.5, "int32": 7, "bool": True}[str(kind)]
            other = pa.array([filler] * len(table), kind)
        table, said = table.set_column(at, pa.field(name, kind), other), f"as {kind}"
    pq.write_table(table, file)
    return f"{name} {said}"


def another_version(file: Path, draw: random.Random) -> str:
    """Give a table another schema version, or none."""
    table = pq.read_table(file)
    version = draw.choice((b"99", b"0", b"-1", b"x", b"", None))
    metadata = {} if version is None else {VERSION_KEY: version}
    pq.write_table(table.replace_schema_metadata(metadata), file)
    return f"version {version!r}"


def other_rows(file: Path, draw: random.Random) -> str:
    """Leave rows of a table out, repeat or reorder them."""
    table = pq.read_table(file)
    rows = list(range(len(table)))
    how = draw.choice(("none", "some", "twice", "reversed"))
    rows = {"none": [], "some": [row for row in rows if draw.random() < 0.5], "twice": rows * 2}.get(
        how, rows[::-1]
    )
    pq.write_table(table.take(pa.array(rows, pa.int64())), file)
    return f"rows: {how}"


def extreme_numbers(file: Path, draw: random.Random) -> str:
    """Put finite numbers at the ends of their ranges into a column."""
    table = pq.read_table(file)
    numeric = [
        at for at, field in enumerate(table.schema)
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]  # fmt: skip
    at = draw.choice(numeric)
    field = table.schema.field(at)
    values = table.column(at).to_pylist()
    drawn = draw.choice(FINITE)
    if pa.types.is_integer(field.type):
        most = 2 ** (field.type.bit_width - 1) - 1
        drawn = int(max(-most - 1, min(most, drawn)))
    else:
        drawn = float(drawn)
    some = draw.choice((0.2, 1.0))
    values = [drawn if value is None or draw.random() < some else value for value in values]
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), file)
    return f"{field.name} {drawn!r}"


def damages_of(file: Path) -> tuple[Damage, ...]:
    """Return what may be done to a file."""
    special: dict[str, tuple[Damage, ...]] = {
        ".json": (another_value, another_value, another_value),
        ".yaml": (another_line, another_line),
        ".parquet": (another_column, another_version, other_rows, extreme_numbers, extreme_numbers),
    }
    return (*ANY_FILE, *special.get(file.suffix, ()))


def damage(file: Path, draw: random.Random) -> str:
    """Damage a file in a way that is drawn; return what was done to it."""
    return draw.choice(damages_of(file))(file, draw)


def copy_of(folder: Path, target: Path) -> Path:
    """Return a copy of a folder, in place of what was there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target
