"""What the wheel holds, and what can be done where only it is installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from installed import ROOT, Installation

PACKAGES = ("edge", "coordinator", "device_profiles", "recfleet")
SHIPPED = "coordinator/scenario/files"

pytestmark = pytest.mark.slow


def package_files() -> set[str]:
    """Return every file that a user needs, as it is called in the wheel."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    scenarios = (f"{SHIPPED}/{path.name}" for path in (ROOT / "scenarios").iterdir())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts} | {*scenarios}


def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        commands = archive.read(metadata).decode()
    assert names == package_files()
    assert "recfleet = coordinator.cli:main" in commands


def test_a_shipped_scenario_runs_by_name_in_an_empty_folder(
    installation: Installation, tmp_path: Path
) -> None:
    done = installation.run("recfleet run quickstart --quiet --out run", tmp_path)
    assert (done.returncode, done.stdout) == (0, "run\n")
    assert done.stderr.startswith("scenario: quickstart, shipped with recfleet: ")
    assert f"{SHIPPED}/quickstart.yaml" in done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_module_is_the_same_command(installation: Installation, tmp_path: Path) -> None:
    listed = installation.run("recfleet scenarios", tmp_path)
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == len(list((ROOT / "scenarios").glob("*.yaml"))) + 1
    assert installation.run("python -m recfleet scenarios", tmp_path).stdout == listed.stdout


def test_the_package_has_the_version_of_the_command(installation: Installation, tmp_path: Path) -> None:
    version = installation.run("python -c 'import recfleet; print(recfleet.__version__)'", tmp_path).stdout
    assert installation.run("recfleet --version", tmp_path).stdout == f"recfleet {version}"


def test_a_scenario_that_extends_another_is_copied_with_it(
    installation: Installation, tmp_path: Path
) -> None:
    done = installation.run(
        "recfleet scenarios --copy fedmmf_two_order && recfleet show fedmmf_two_order.yaml", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*.yaml")} == {
        "fedmmf_two_order.yaml",
        "fedmmf_one_order.yaml",
    }


def test_the_doctor_finds_nothing_wrong(installation: Installation, tmp_path: Path) -> None:
    done = installation.run("recfleet doctor", tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("nothing is wrong\n")


def test_bash_completes(installation: Installation, tmp_path: Path) -> None:
    done = installation.run(
        'eval "$(_RECFLEET_COMPLETE=bash_source recfleet)"\n'
        "complete -p recfleet\n"
        'COMP_WORDS=(recfleet val); COMP_CWORD=1; _recfleet_completion recfleet; echo "${COMPREPLY[@]}"\n'
        "touch quicker.yaml\n"
        "COMPREPLY=(); COMP_WORDS=(recfleet run quick); COMP_CWORD=2; _recfleet_completion recfleet\n"
        'echo "${COMPREPLY[@]}"\n',
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _recfleet_completion recfleet",
        "validate",
        "quickstart quicker.yaml",
    ]
