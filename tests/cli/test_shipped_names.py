"""Shipped scenarios by name, from any folder: which file is meant, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario import shipped, shipped_needs
from coordinator.scenario.shipped import shipped_files

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {path.stem: path for path in (ROOT / "scenarios").glob("*.yaml")}


def test_a_source_tree_has_the_files_of_its_own_folder() -> None:
    assert shipped_files() == SHIPPED
    assert list(shipped_files()) == sorted(SHIPPED)


def test_an_installed_package_has_those_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only.yaml").touch()
    monkeypatch.setattr(shipped, "_INSTALLED", tmp_path)
    assert shipped_files() == {"only": tmp_path / "only.yaml"}


def test_a_name_runs_the_shipped_scenario_and_says_so(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        execute(["run", "quickstart", "--quiet", "--set", "rounds.count=1", "--set", "thresholds=null"]) == 0
    )
    printed = capsys.readouterr()
    assert printed.err == f"scenario: quickstart, shipped with recfleet: {SHIPPED['quickstart']}\n"
    (run,) = (in_folder / "runs").iterdir()
    assert run.name.startswith("quickstart-7-")
    assert json.loads((run / "manifest.json").read_text(encoding="utf-8"))["seed"] == 7


@pytest.mark.parametrize("verb", ["validate", "show", "upgrade"])
def test_verbs_that_take_a_scenario_take_a_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([verb, "quickstart"]) == 0
    printed = capsys.readouterr()
    assert "shipped with recfleet" in printed.err
    assert str(SHIPPED["quickstart"]) in printed.out or "Two hundred phones" in printed.out


def test_sweep_takes_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["sweep", "quickstart"]) == 2
    assert f"{SHIPPED['quickstart']}: has no section 'sweep'" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["quickstart.yaml", "quickstart"])
def test_a_file_of_that_name_is_passed_over_and_said_to_be(
    file: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text("no scenario\n", encoding="utf-8")
    assert execute(["validate", "quickstart"]) == 0
    said = f"scenario: quickstart, shipped with recfleet: {SHIPPED['quickstart']}"
    assert capsys.readouterr().err == f"{said}; for the file in this folder write ./{file}\n"


@pytest.mark.parametrize("written", ["quickstart.yaml", "./quickstart.yaml", "./quickstart"])
def test_a_suffix_or_a_folder_means_the_file(
    written: str, scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.rename(in_folder / written)
    assert execute(["show", written]) == 0
    printed = capsys.readouterr()
    assert "Sixty clients" in printed.out
    assert printed.err == ""


def test_a_file_without_a_suffix_is_taken_where_no_shipped_one_has_its_name(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.rename(in_folder / "mine")
    assert execute(["validate", "mine"]) == 0
    assert capsys.readouterr() == ("mine: ok\n", "")


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("quickstrat", "did you mean 'quickstart'?"),
        ("quickstart.yaml", "one is shipped: write 'quickstart', or copy it with"),
        ("scenarios/quickstart.yaml", "one is shipped: write 'quickstart', or copy it with"),
        ("xyzzy", "see those that are shipped with: recfleet scenarios"),
        ("mine", "did you mean the file 'mine.yaml'?"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_is_meant(
    written: str, advice: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").touch()
    for verb in ("run", "validate", "show", "sweep", "serve", "upgrade"):
        assert execute([verb, written]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(f"{written}:1:1: there is no such file\n"), verb
        assert advice in printed, verb


def test_ratings_and_folders_are_no_scenarios_and_are_answered_with_what_is_meant(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my ratings.CSV").write_text("user,item,rating\n1,2,3\n")
    assert execute(["run", "my ratings.CSV"]) == 2
    said = "no scenario; if it holds ratings, recfleet init --data 'my ratings.CSV' writes one for them"
    assert said in capsys.readouterr().err
    assert execute(["run", str(scenario), "--quiet", "--out", "done"]) == 0
    capsys.readouterr()
    assert execute(["run", "done"]) == 2
    resolved = Path("done", "scenario.resolved.yaml")
    assert f"done is a folder; the scenario of that run is {resolved}" in capsys.readouterr().err
    assert execute(["validate", str(resolved)]) == 0
    Path("empty").mkdir()
    capsys.readouterr()
    assert execute(["validate", "empty"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("empty is a folder")


def test_the_list_says_what_each_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["scenarios"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(SHIPPED) <= set(lines)
    assert lines["quickstart"].endswith("Two hundred phones, twenty rounds")
    assert lines["movielens_100k"].endswith("; needs data of movielens-100k (--set data.path=FOLDER)")
    # Its data is named by the scenario that it extends.
    assert lines["fedmmf_two_order"].endswith("; needs data of movielens-100k (--set data.path=FOLDER)")
    assert lines["distributed_dp"].endswith("; needs pip install 'recfleet[dp]'")
    assert lines["on_device_inference"].endswith("; needs pip install 'recfleet[export]'")
    assert "needs" not in lines["poisoned_updates"]  # its noise is not accounted for
    assert "needs" not in lines["secagg_vs_plain_vs_ckks"]  # its encryption is modelled


def test_how_long_a_run_takes_is_known_of_each_and_of_no_other() -> None:
    assert set(shipped_needs.RUN_S) == set(SHIPPED)


def test_the_extras_that_are_listed_are_those_without_which_a_scenario_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for available in (
        "edge.privacy.accounting.available",
        "edge.homomorphic.available",
        "edge.onnx.graph_writer.available",
    ):
        monkeypatch.setattr(available, lambda: False)
    listed = {one.name: one.extras for one in shipped_needs.shipped_scenarios()}
    for name, extras in listed.items():
        code = execute(["show", name])
        assert (code == 2) == bool(extras), name
        printed = capsys.readouterr().err
        assert [extra for extra in extras if f"recfleet[{extra}]" not in printed] == []


def test_a_copy_is_the_file_itself(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["scenarios", "--copy", "quickstart"]) == 0
    assert capsys.readouterr().out == "wrote quickstart.yaml\n"
    assert Path("quickstart.yaml").read_bytes() == SHIPPED["quickstart"].read_bytes()


def test_what_a_copied_scenario_extends_comes_with_it(in_folder: Path) -> None:
    assert execute(["scenarios", "--copy", "fedmmf_two_order", "--copy", "fedmmf_high_order"]) == 0
    written = {path.stem for path in in_folder.glob("*.yaml")}
    assert written == {"fedmmf_two_order", "fedmmf_high_order", "fedmmf_one_order"}


def test_the_schema_that_a_copy_names_is_beside_it_and_never_replaced(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Path("recfleet.schema.json")
    assert execute(["scenarios", "--copy", "quickstart"]) == 0
    assert capsys.readouterr().err == f"wrote {schema}: editors complete and check scenarios by it\n"
    assert json.loads(schema.read_text(encoding="utf-8"))["title"] == "recfleet scenario"
    schema.write_text("mine\n", encoding="utf-8")
    assert execute(["scenarios", "--copy", "stragglers"]) == 0
    assert execute(["init"]) == 0
    assert schema.read_text(encoding="utf-8") == "mine\n"


def test_a_copy_replaces_nothing(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fedmmf_one_order.yaml").write_text("mine\n", encoding="utf-8")
    assert execute(["scenarios", "--copy", "fedmmf_two_order"]) == 2
    assert capsys.readouterr().err == (
        "error: there is already fedmmf_one_order.yaml here; move it, or go to another folder\n"
    )
    assert [path.name for path in in_folder.iterdir()] == ["fedmmf_one_order.yaml"]
    assert Path("fedmmf_one_order.yaml").read_text(encoding="utf-8") == "mine\n"


def test_an_unknown_name_is_not_copied(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["scenarios", "--copy", "quikstart"]) == 2
    assert "there is no shipped scenario 'quikstart'; did you mean 'quickstart'?" in capsys.readouterr().err
