from __future__ import annotations

import pytest

from coordinator.cli.entry import execute
from device_profiles import catalogue


def test_list_names_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = [
        line
        for section, names in catalogue.load().names().items()
        for line in (f"{section}:", *(f"  {name}" for name in names))
    ]
    assert lines == expected


def test_list_of_one_kind_has_a_name_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "list", "fleets"]) == 0
    assert capsys.readouterr().out.splitlines() == list(catalogue.load().names()["fleets"])


def test_list_of_an_unknown_kind_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "list", "phones"]) == 2
    assert "'devices'" in capsys.readouterr().err


def test_show_gives_every_value_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "show", "phone_mid_2020"]) == 0
    shown = capsys.readouterr().out
    for row in catalogue.load().describe("phone_mid_2020"):
        assert row.field in shown
        assert row.value in shown
        assert row.citation in shown


def test_show_of_an_unknown_profile_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "show", "phone_mid_202"]) == 2
    assert (
        capsys.readouterr().err == "error: unknown profile 'phone_mid_202'; did you mean 'phone_mid_2020'?\n"
    )


def test_show_looks_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "show", "wifi", "--kind", "radios"]) == 0
    assert "promotion" in capsys.readouterr().out
    assert execute(["profiles", "show", "wifi", "--kind", "devices"]) == 2
    assert "unknown profile 'wifi'" in capsys.readouterr().err


def test_an_unreadable_catalogue_file_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "list", "--profiles", "missing.yaml"]) == 2
    assert capsys.readouterr().err == "missing.yaml:1:1: there is no such file\n"
