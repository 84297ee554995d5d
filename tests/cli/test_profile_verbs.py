from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from device_profiles import catalogue

OUR_NETWORK = """\
sources:
  bench: our own bench
networks:
  ours:
    like: wifi_enterprise
    up: 3 Mbit/s
    rtt: 45 ms
    sources:
      up: bench (at noon)
      rtt: bench
      jitter: bench + assumption (rounded)
      rate_sigma: unverified (a forum)
"""


def test_list_names_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["profiles", "list"]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    expected = [
        line
        for section, names in catalogue.load().names().items()
        for line in (f"{section}:", *(f"  {name}" for name in names))
    ]
    assert [re.split(r"(?<=\S)  +", line)[0] for line in lines] == expected
    counts = [tuple(map(int, found)) for found in re.findall(r"(\d+) of (\d+) measured", "\n".join(lines))]
    measured, numbers = (sum(column) for column in zip(*counts, strict=True))
    assert total.startswith(f"{measured} of {numbers} numbers are measured, ")


def test_list_counts_the_numbers_with_a_source_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(OUR_NETWORK, encoding="utf-8")
    assert execute(["profiles", "list", "--profiles", str(file)]) == 0
    out = capsys.readouterr().out
    # up and rtt stand on something, jitter only in part, the rest on nothing.
    assert re.search(r"^  ours +2 of 7 measured$", out, re.M)
    assert re.search(r"^  always_on +no numbers$", out, re.M)


def test_show_says_of_each_number_whether_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(OUR_NETWORK, encoding="utf-8")
    assert execute(["profiles", "show", "ours", "--profiles", str(file)]) == 0
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert rows[:9] == [
        ["like", "wifi_enterprise", "–", "–"],
        ["down", "100 Mbit/s", "assumed", "assumption"],
        ["up", "3 Mbit/s", "measured", "bench (at noon)"],
        ["rtt", "45 ms", "measured", "bench"],
        ["jitter", "3 ms", "partly assumed", "bench + assumption (rounded)"],
        ["loss", "0.1%", "assumed", "assumption"],
        ["rate_sigma", "0.3", "assumed", "unverified (a forum)"],
        ["rate_rho", "0.9", "assumed", "assumption"],
        ["radio", "wifi", "–", "–"],
    ]


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
