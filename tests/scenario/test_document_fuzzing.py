"""Whatever the bytes: a document, or an error with a place."""

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from device_profiles.documents import parse_document
from device_profiles.errors import DocumentError

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
PIECES = [
    *(b"\t", b"\n", b": ", b"- ", b"{", b"}", b"[", b"]", b"&a", b"*a", b"<<:", b"|", b">", b"'", b'"', b"#"),
    *(b"---\n", b"...\n", b"? ", b"~", b"null", b"1e999", b".nan", b"-1", b"\r", b"a" * 300),
    *(b"!!python/object:os.system", b"%YAML 9.9\n"),
    *(b"\xff", b"\x00", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
]


def mutated(generator: random.Random, source: bytes) -> bytes:
    content = bytearray(source)
    for _ in range(generator.randint(1, 8)):
        place = generator.randrange(len(content) + 1)
        action = generator.randrange(5)
        if action == 0:
            content[place:place] = generator.choice(PIECES)
        elif action == 1:
            del content[place : place + generator.randint(1, 30)]
        elif action == 2 and content:
            content[place % len(content)] = generator.randrange(256)
        elif action == 3:
            end = place + generator.randint(1, 60)
            content[place:place] = content[place:end]
        else:
            content = bytearray(generator.randbytes(generator.randint(0, 80)))
    return bytes(content)


def first_problem(content: bytes, file: Path) -> DocumentError | None:
    """Parse and load ``content``; return the first error, None if it is a valid scenario."""
    with contextlib.suppress(DocumentError):
        parse_document(content, file.name)
    file.write_bytes(content)
    try:
        load(file, references=False)
    except ScenarioError as error:
        return error.problems[0]
    return None


def fuzz(folder: Path, seconds: float, seed: int, at_least: int) -> None:
    """Parse and load mutated scenarios, for so long and until more than ``at_least`` were refused."""
    generator = random.Random(seed)
    sources = [path.read_bytes() for path in SCENARIOS]
    file = folder / "fuzzed.yaml"
    until = time.monotonic() + seconds
    refused = 0
    while time.monotonic() < until or refused <= at_least:
        content = mutated(generator, generator.choice(sources))
        problem = first_problem(content, file)
        if problem is not None:
            refused += 1
            assert problem.position.line >= 1, content


@pytest.mark.slow
def test_fuzzing_finds_nothing(tmp_path: Path) -> None:
    fuzz(tmp_path, float(os.environ.get("RECFLEET_FUZZ_S", "5")), seed=2, at_least=300)
