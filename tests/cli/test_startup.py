"""What a command imports: counted, for a count is the same on every machine and seconds are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.verbs import cli

ROOT = Path(__file__).resolve().parents[2]

MOST_MODULES = 150
"""That help, completion and refusals of a command line may import, the interpreter's own included."""

PROGRAM = """\
import sys
from coordinator.cli import main
try:
    main()
except SystemExit as end:
    print("exit code", end.code, *sys.modules)
"""


def imported(*arguments: str, code: int) -> set[str]:
    """Run a command and return the names of all modules that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found, *names = done.stdout.rpartition("exit code ")[2].split()
    assert int(found) == code, done.stderr
    return set(names)


@pytest.mark.parametrize(
    "words",
    [
        "",
        *cli.commands,
        "enroll issue",
        "enroll list",
        "enroll revoke",
        "profiles list",
        "profiles show",
        "profiles fit",
    ],
)
@pytest.mark.few(8)
def test_help_imports_few_modules(words: str) -> None:
    assert len(imported(*words.split(), "--help", code=0)) <= MOST_MODULES


@pytest.mark.parametrize(
    "arguments",
    [
        ["rnu"],
        ["run", "--no-such-option"],
        ["run", "quickstart", "--clock", "quick"],
        ["run"],
        ["serve", "quickstart", "--port", "70000"],
        ["enroll", "issue", "tokens", "--devices", "none"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused_before_anything_heavy_is_imported(arguments: list[str]) -> None:
    assert len(imported(*arguments, code=2)) <= MOST_MODULES


FAULTS = "faults: [{name: frames, reorder: {probability: 1%}}, {name: gone, at_stage: compute, vanish: {}}]\n"


@pytest.mark.parametrize("faults", ["", FAULTS], ids=["no faults", "faults"])
def test_made_up_ratings_are_validated_without_what_reads_files_and_encrypts(
    faults: str, scenario: Path
) -> None:
    scenario.write_text(scenario.read_text(encoding="utf-8") + faults, encoding="utf-8")
    packages = {name.partition(".")[0] for name in imported("validate", str(scenario), code=0)}
    assert "pydantic" in packages
    assert {"pyarrow", "cryptography", "onnxruntime", "aiohttp", "rich", "jinja2"}.isdisjoint(packages)


def test_a_secure_scenario_is_validated_without_cryptography() -> None:
    packages = {name.partition(".")[0] for name in imported("validate", "secagg_active", code=0)}
    assert {"pyarrow", "cryptography", "tenseal"}.isdisjoint(packages)


COLLECTIONS = """\
import atexit, gc, sys
gc.callbacks.append(lambda phase, info: searched.append(gc.get_freeze_count() == 0))
searched = []
atexit.register(lambda: print("searched", sum(searched), "kept", gc.get_freeze_count() > 0))
from coordinator.cli import main
searched.clear()
main()
"""


def test_imports_and_the_end_of_a_command_are_not_searched_for_garbage() -> None:
    """Each search of all that was imported would take a tenth of what the command takes."""
    words = [sys.executable, "-c", COLLECTIONS, "validate", "quickstart"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "searched 0 kept True"


def test_a_run_does_without_what_reads_many_files_and_documents_functions(tmp_path: Path) -> None:
    # One round teaches less than the thresholds promise of twenty.
    names = imported("run", "quickstart", "--out", str(tmp_path / "run"), "--set", "rounds.count=1", code=3)
    unneeded = {"pyarrow.acero", "pyarrow.compute", "pyarrow.dataset", "onnxruntime", "aiohttp"}
    assert {*unneeded, "cryptography"}.isdisjoint(names)
