from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import coordinator
from coordinator.cli import doctor as doctor_verb
from coordinator.cli import installation as doctor
from coordinator.cli.entry import execute
from coordinator.cli.installation import Finding, Severity
from coordinator.engine.host import numerics

ROOT = Path(__file__).resolve().parents[2]
HOME = Path("/venv/site-packages")


def judge_packages(
    located: dict[str, Path | None], home: Path | None = HOME, owners: dict[str, list[str]] | None = None
) -> list[tuple[str, Severity]]:
    found = doctor.package_findings(located, home, owners or {})
    return [(finding.subject, finding.severity) for finding in found]


def test_packages_beside_each_other_in_the_installation_are_fine() -> None:
    located: dict[str, Path | None] = {name: HOME / name for name in doctor.PACKAGES}
    owners = {name: ["recfleet"] for name in doctor.PACKAGES}
    assert judge_packages(located, owners=owners) == [(name, Severity.FINE) for name in doctor.PACKAGES]


def test_a_package_that_another_distribution_installs_too_is_wrong() -> None:
    located: dict[str, Path | None] = {"coordinator": HOME / "coordinator"}
    (finding,) = doctor.package_findings(located, HOME, {"coordinator": ["recfleet", "coordinator-x"]})
    assert finding.severity is Severity.WRONG
    assert "coordinator-x" in finding.fact
    assert finding.advice.startswith("uninstall coordinator-x, then: pip install")


def test_a_package_from_elsewhere_is_wrong() -> None:
    assert judge_packages({"edge": Path("/elsewhere/edge")}) == [("edge", Severity.WRONG)]


def test_a_package_that_cannot_be_found_is_wrong() -> None:
    assert judge_packages({"edge": None}) == [("edge", Severity.WRONG)]


def test_our_packages_are_located_where_these_tests_import_them_from() -> None:
    assert doctor.located_packages()["coordinator"] == Path(coordinator.__file__).resolve().parent
    assert set(doctor.located_packages()) == set(doctor.PACKAGES)


def install(folder: Path, name: str, **files: str) -> None:
    """Lay down the metadata of a distribution."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    for file, text in files.items():
        (info / file.replace("_json", ".json")).write_text(text, encoding="utf-8")


def test_an_installation_lies_where_its_metadata_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "recfleet-sample")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.installed_at("recfleet-sample") == tmp_path.resolve()
    assert doctor.installed_at("recfleet-missing") is None


def test_an_editable_installation_lies_in_its_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = json.dumps({"url": "file:///home/me/my%20fleet", "dir_info": {"editable": True}})
    install(tmp_path, "recfleet-sample", direct_url_json=source)
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.installed_at("recfleet-sample") == Path("/home/me/my fleet")


def test_an_installation_from_a_folder_is_not_editable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = json.dumps({"url": "file:///home/me/fleet", "dir_info": {}})
    install(tmp_path, "recfleet-sample", direct_url_json=source)
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.installed_at("recfleet-sample") == tmp_path.resolve()


def test_requirements_leave_extras_out() -> None:
    lines = ["numpy<3,>=1.26", "ruamel.yaml>=0.18.6", "pytest>=8; extra == 'test'", 'mypy; extra == "dev"']
    assert doctor.requirements(lines) == ["numpy", "ruamel.yaml"]


def test_every_extra_for_users_is_explained() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(doctor.EXTRAS) == set(declared["optional-dependencies"]) - {"test", "dev", "docs"}


@pytest.mark.parametrize("extra", doctor.EXTRAS)
def test_what_an_extra_installs_is_looked_for_under_the_name_of_its_module(extra: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # As metadata has them: small letters.
    for name in doctor.requirements([line.lower() for line in declared["optional-dependencies"][extra]]):
        looked_for: list[str] = []
        found = doctor.dependency_finding(name, looked_for.append)
        if found.severity is Severity.FINE:  # it is installed here
            assert [importlib.util.find_spec(module) is not None for module in looked_for] == [True]


def test_extras_are_reported_with_what_they_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "recfleet-sample")
    with (tmp_path / "recfleet_sample-1.0.dist-info" / "METADATA").open("a", encoding="utf-8") as file:
        for line in ("click>=8; extra == 'dp'", 'recfleet-missing<2; extra == "export"', "numpy"):
            file.write(f"Requires-Dist: {line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = {finding.subject: finding for finding in doctor.extra_findings("recfleet-sample")}
    assert found["extra dp"].severity is Severity.FINE
    assert found["extra dp"].fact.startswith("epsilon of differential privacy: click 8")
    assert found["extra export"].severity is Severity.NOTE
    assert found["extra export"].fact.endswith(": without recfleet-missing")
    assert found["extra export"].advice == "to have it: pip install 'recfleet[export]'"


def test_an_extra_that_does_not_load_is_wrong() -> None:
    broken = Finding(Severity.WRONG, "tenseal", "1.0, but it cannot be imported: OSError: no", "again")
    fine = Finding(Severity.FINE, "phe", "1.5")
    found = doctor.extra_finding("he", "sums", [fine, broken])
    assert found == Finding(Severity.WRONG, "extra he", f"tenseal {broken.fact}", "again")


def test_a_distribution_that_is_not_installed_is_wrong() -> None:
    (finding,) = doctor.dependency_findings("recfleet-missing")
    assert finding.severity is Severity.WRONG
    assert "pip install" in finding.advice


def test_dependencies_are_imported_and_reported() -> None:
    subjects = [finding.subject for finding in doctor.dependency_findings("pydantic")]
    assert subjects[0] == "pydantic"
    assert "pydantic-core" in subjects


def test_a_dependency_that_is_missing_is_wrong() -> None:
    assert doctor.dependency_finding("recfleet-missing").severity is Severity.WRONG


def test_a_dependency_that_does_not_load_is_wrong() -> None:
    def load(name: str) -> object:
        raise ImportError(f"{name}: undefined symbol")

    finding = doctor.dependency_finding("numpy", load)
    assert finding.severity is Severity.WRONG
    assert "undefined symbol" in finding.fact


@pytest.mark.parametrize("name", ["numpy", "ruamel-yaml"])
def test_a_dependency_that_loads_is_fine(name: str) -> None:
    finding = doctor.dependency_finding(name)
    assert finding.severity is Severity.FINE
    assert finding.fact[0].isdigit()


@pytest.mark.parametrize(
    ("version", "severity"),
    [((3, 10, 14), Severity.WRONG), ((3, 11, 0), Severity.FINE), ((3, 13, 1), Severity.FINE)],
)
def test_the_python_it_needs(version: tuple[int, int, int], severity: Severity) -> None:
    assert doctor.python_finding(version).severity is severity


@pytest.mark.parametrize(
    ("threads", "severity"), [("1", Severity.FINE), ("unset", Severity.NOTE), ("8", Severity.NOTE)]
)
def test_more_blas_threads_than_one_are_noted(threads: str, severity: Severity) -> None:
    assert doctor.blas_finding(numerics() | {"blas_threads": threads}).severity is severity


def test_what_bits_depend_on_is_named() -> None:
    here = numerics()
    fact = doctor.blas_finding(here).fact
    assert all(here[name] in fact for name in ("blas", "blas_core", "vector_instructions", "libc"))
    assert here["cpu"] in doctor.processor_finding(here["cpu"]).fact


@pytest.mark.skipif(
    numerics()["blas_core"] == "unknown" or platform.machine() != "x86_64",
    reason="needs a numpy with OpenBLAS of its own, and kernels of x86-64",
)
@pytest.mark.parametrize("core", ["Nehalem", "Sandybridge"])
def test_the_kernels_named_are_those_that_openblas_runs(core: str) -> None:
    program = "from coordinator.engine.host import numerics; print(numerics()['blas_core'])"
    environment = os.environ | {"OPENBLAS_CORETYPE": core}
    shown = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().lower() == core.lower()


def test_a_python_on_which_the_virtual_clock_goes_wrong_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.virtual_clock_finding().severity is Severity.FINE
    monkeypatch.delattr(asyncio.BaseEventLoop, "_run_once")
    finding = doctor.virtual_clock_finding()
    assert finding.severity is Severity.WRONG
    assert "_run_once" in finding.fact


def test_little_memory_and_disk_are_noted() -> None:
    assert doctor.memory_finding(8 << 30, 4 << 30).severity is Severity.FINE
    assert doctor.memory_finding(8 << 30, 1 << 20).severity is Severity.NOTE
    assert doctor.disk_finding(100 << 30, Path("here")).severity is Severity.FINE
    assert doctor.disk_finding(1 << 20, Path("here")).severity is Severity.NOTE


def test_a_clock_that_was_never_set_is_wrong() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert doctor.clock_finding(1e-9, now).severity is Severity.FINE
    assert doctor.clock_finding(0.015, now).severity is Severity.NOTE
    assert doctor.clock_finding(1e-9, datetime(1970, 1, 1, tzinfo=UTC)).severity is Severity.WRONG


def test_the_examination_covers_every_subject() -> None:
    subjects = {finding.subject for finding in doctor.examine()}
    assert {
        "python",
        "recfleet",
        *doctor.PACKAGES,
        "processors",
        "numerics",
        "virtual clock",
        "memory",
        "disk",
        "clock",
    } <= subjects


@pytest.mark.parametrize(
    ("severity", "code", "ending"),
    [
        (Severity.FINE, 0, "nothing is wrong"),
        (Severity.NOTE, 0, "nothing is wrong"),
        (Severity.WRONG, 1, "1 wrong"),
    ],
)
def test_the_verb_exits_with_1_only_if_something_is_wrong(
    severity: Severity,
    code: int,
    ending: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finding = Finding(severity, "clock", "stopped", "wind it up")
    fine = dataclasses.replace(finding, severity=Severity.FINE, subject="disk", advice="")
    monkeypatch.setattr(doctor_verb, "examine", lambda: [finding, fine])
    assert execute(["doctor"]) == code
    shown = capsys.readouterr().out
    assert "wind it up" in shown
    assert shown.endswith(f"{ending}\n")
