"""The report as text: figures, escaping, self-containedness, and runs that are not whole."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from metrics_samples import sample_evaluation, sample_round, write_run
from report_reading import Page, figures_of_tables

from coordinator.cli.entry import execute
from coordinator.engine.facts import MetricValue
from coordinator.results.report import html
from coordinator.results.report.page import contents_of_run, contents_of_runs, report_of
from coordinator.results.report.people import show
from coordinator.results.report.view import RunView, view_of
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from coordinator.results.verdicts import read_verdicts


@pytest.fixture(scope="module")
def text(finished: Path) -> str:
    return (finished / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_report_reads_as_html_with_all_sections(page: Page) -> None:
    assert page.headings == [
        "Did it hold what it promised, and by how much?",
        "How long does a round take, and what holds it up?",
        "Where do the bytes go?",
        "Who drops out, and why?",
        "What is the model worth for it?",
        "Everything else",
    ]
    folded = [text for text in page.texts["summary"] if text != "Data"]
    assert folded == [
        "The longest rounds, and the slowest devices",
        "What became of the bytes",
        "All outcomes",
        "How soon it got there",
        "Key figures",
        "Participation and fairness",
        "The computer it ran on",
        "About this run",
    ]
    # The head answers each question, and leads to more.
    assert page.texts["strong"][0] == "1 of 3 missed"
    assert [link for link in page.links if link.startswith("#")][1:] == [
        "#promises", "#rounds", "#bytes", "#drops", "#model",
    ]  # fmt: skip
    assert len(set(page.ids)) == len(page.ids)
    assert {link for link in page.links if link.startswith("#")} <= {f"#{name}" for name in page.ids}


def test_every_figure_equals_the_tables(page: Page, finished: Path) -> None:
    expected = figures_of_tables(finished)
    assert {name: page.figures.get(name) for name in expected} == pytest.approx(expected, rel=1e-12)
    durations = open_run(finished).read("rounds", ["duration_s"])["duration_s"].to_pylist()
    held_up = [value for name, value in page.figures.items() if name.startswith("held_up[")]
    assert sum(held_up) == pytest.approx(sum(durations))


def test_verdicts_are_those_of_the_run(page: Page, finished: Path) -> None:
    verdicts = read_verdicts(finished)
    assert [verdict["held"] for verdict in verdicts] == [True, False, True]
    for verdict in verdicts:
        key = f"threshold[{verdict['threshold']}]"
        assert page.figures[f"{key}.held"] == verdict["held"]
        assert page.figures[f"{key}.margin"] == verdict["margin"]
    worst = max(open_run(finished).read("rounds", ["duration_s"])["duration_s"].to_pylist())
    assert page.figures["threshold[round.duration: max < 2 s].value"] == worst


def test_nothing_is_fetched_from_anywhere(text: str, page: Page) -> None:
    assert re.findall(r"https?:", text) == []
    assert re.findall(r"url\(|@import|\bfetch\(|XMLHttpRequest|WebSocket", text) == []
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    sources = [name for _, found in page.attributes for name in ("src", "srcset", "data") if name in found]
    assert sources == []
    assert "default-src 'none'" in text


def test_what_strangers_wrote_is_text(text: str, page: Page) -> None:
    assert page.texts["h1"] == ['<script>alert(1)</script> & "quotes" </title>']
    assert "<img src=x onerror=alert(2)>" in page.texts["p"]
    assert "img" not in page.tags
    assert page.tags.count("b") == 0
    assert "</script><b>gone" in page.texts["div"]
    # The script of the page, and the points of each chart.
    assert page.tags.count("script") == 1 + text.count('<script type="application/json">')
    assert "<b>" not in text


def test_charts_can_be_read_without_seeing_them(page: Page) -> None:
    images = [found for _, found in page.attributes if found.get("role") == "img"]
    assert len(images) >= 10
    assert all(found.get("aria-label") for found in images)
    assert page.tags.count("figure") == page.tags.count("figcaption") == page.texts["summary"].count("Data")
    assert page.tags.count("table") == page.tags.count("caption")
    assert page.tags.count("h1") == 1


def test_the_verb_writes_the_same_report_again(
    finished: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["report", str(finished), "-o", str(tmp_path / "again.html")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'again.html'}: 1 run, ")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_markdown_has_the_answers_and_every_table(finished: Path, tmp_path: Path, page: Page) -> None:
    output = tmp_path / "report.md"
    assert execute(["report", str(finished), "--format", "md", "-o", str(output)]) == 0
    text = output.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    title, *_ = text.splitlines()
    assert title == '# \\<script\\>alert(1)\\</script\\> & "quotes" \\</title\\>'
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == page.headings
    assert "- **Promises**: 1 of 3 missed; round.completed: " not in text  # that one held
    assert "- **Promises**: 1 of 3 missed; round.duration: " in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| round.")]
    assert [row[0] for row in rows] == ["| round.duration: max \\< 2 s", "| round.completed: rate == 100%"]
    # Every table of the page, each once, with the titles of those that people see.
    captions = set(page.texts["span"]) & set(text.splitlines())
    assert {"Bytes by kind", "Device rounds by outcome", "Key figures"} <= captions
    assert text.count("Bytes by stage of the protocol, of all invited devices") == 1


def test_svg_has_a_chart_for_each_question(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", str(finished), "--format", "svg"]) == 0
    assert capsys.readouterr().out.startswith(f"{finished / 'report.svg'}: 1 run, ")
    text = (finished / "report.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert "var(" not in text  # which not all that draw know
    assert re.findall(r"url\(|@import|href", text) == []
    heads = [one.text for one in root.iterfind(".//{*}text") if one.get("class") == "head"]
    for question in ("Did it hold", "How long does", "Where do the bytes", "Who drops", "What is the"):
        assert [head for head in heads if str(head).startswith(question)], question
    names = {name for one in root.iter() for name in str(one.get("class", "")).split()}
    styled = set(re.findall(r"\.([\w-]+)", str(root.find("{*}style").text)))  # type: ignore[union-attr]
    assert names <= styled | {"line", "fill"}
    # Everything stands on the sheet.
    height = float(str(root.get("height")))
    assert all(float(str(one.get("y"))) < height for one in root.iterfind(".//{*}text"))


def advised(directory: Path, name: str, *advice: str) -> RunView:
    view = view_of(open_run(directory), name)
    return replace(view, summary={**view.summary, "advice": [{"text": text} for text in advice]})


def test_advice_stands_below_the_answers_and_of_several_runs_is_folded(finished: Path) -> None:
    text = html.page(contents_of_run(advised(finished, "a", "invite <more>")))
    assert "Advice: invite <more>" in Page(text).texts["p"]
    assert text.index("</nav>") < text.index("Advice: invite") < text.index("<main")
    both = Page(
        html.page(contents_of_runs([advised(finished, "a", "invite <more>"), advised(finished, "b")]))
    )
    assert "Advice on single runs" in both.texts["summary"]
    assert "invite <more>" in both.texts["td"]
    assert not [said for said in both.texts["p"] if "invite" in said]


def test_what_is_said_of_several_runs_is_said_once(tmp_path: Path) -> None:
    views = []
    for name in ("a", "b", "c", "d", "e"):
        write_run(tmp_path / name, rounds=2, finish=False)
        view = view_of(open_run(tmp_path / name), name)
        notices = ["of all", *(["of four"] if name != "e" else [])]
        views.append(replace(view, summary={**view.summary, "status": "finished", "notices": notices}))
    found = contents_of_runs(views).notices
    assert found == ("of all", "a, b, c and 1 more: of four")


@pytest.mark.parametrize("manifest", ['{"status": "running"}', '{"status": "interrupted"}', None])
def test_a_run_without_an_end_has_a_report_that_says_so(tmp_path: Path, manifest: str | None) -> None:
    write_run(tmp_path / "run", rounds=2, finish=False)
    if manifest is not None:
        (tmp_path / "run" / "manifest.json").write_text(manifest, encoding="utf-8")
    page = Page(report_of([tmp_path / "run"]))
    said = " ".join(page.texts["p"])
    assert ("killed", "interrupted", "unknown")[
        ['{"status": "running"}', '{"status": "interrupted"}', None].index(manifest)
    ] in said
    assert re.search(r"\b2 (finished )?rounds\b", said)
    assert page.figures["rounds.completed"] == 2
    assert not [name for name in page.figures if name.startswith("threshold[")]


def test_a_run_killed_at_once_has_a_report(tmp_path: Path) -> None:
    with RunWriter(tmp_path):
        pass
    page = Page(report_of([tmp_path]))
    assert page.headings == ["Everything else"]
    assert page.texts["summary"] == ["Key figures", "The computer it ran on", "About this run"]
    assert page.figures["device_rounds"] == 0


def test_sections_without_anything_to_say_are_left_out(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1))
        writer.finish()
    page = Page(report_of([tmp_path]))
    folded = page.texts["summary"]
    assert "Key figures" in folded
    assert "Privacy" not in folded
    assert "over the rounds" not in page.texts["span"]
    assert "On-device inference" not in folded
    assert "What is the model worth for it?" in page.headings  # of the training loss alone
    assert "Did it hold what it promised, and by how much?" not in page.headings


def test_inference_shows_what_was_simulated_and_what_was_measured(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2)
    page = Page(report_of([tmp_path]))
    assert "On-device inference" in page.texts["summary"]
    rows = open_run(tmp_path).read("inferences", ["class", "latency_s", "host_latency_s"]).to_pydict()
    for name in set(rows["class"]):
        mine = [s for s, of in zip(rows["latency_s"], rows["class"], strict=True) if of == name]
        assert page.figures[f"inference[{name}].inferences"] == len(mine)
        assert page.figures[f"inference[{name}].latency_s.p50"] == pytest.approx(statistics.median(mine))
    largest = max(rows["host_latency_s"])
    assert page.figures["measured.inference.host_latency_s.max"] == pytest.approx(largest)


def on_clock(folder: Path, clock: str) -> Path:
    folder.mkdir()
    with RunWriter(folder) as writer:
        for number in (1, 2, 3):
            writer.write_round(sample_round(number, epsilon=0.5 * number))
        writer.finish()
    (folder / "manifest.json").write_text(f'{{"clock": "{clock}"}}', encoding="utf-8")
    return folder


def test_times_are_called_what_they_are(tmp_path: Path) -> None:
    virtual, real = on_clock(tmp_path / "virtual", "virtual"), on_clock(tmp_path / "real", "real")
    simulated, measured = report_of([virtual]), report_of([real])
    both = report_of([virtual, real])
    for report, name in ((simulated, "simulated time"), (measured, "real time"), (both, "time of the run")):
        assert f"Line chart of training loss against {name}" in report
        others = {"simulated time", "real time", "time of the run"} - {name}
        assert [other for other in others if other in report] == []
    assert "epsilon against simulated time" in simulated
    assert "epsilon against real time" in measured
    assert "Simulated seconds on critical paths" in simulated
    assert "Measured seconds on critical paths" in measured
    assert ("every time is measured" in simulated, "every time is measured" in measured) == (False, True)


def test_privacy_shows_epsilon_and_audits(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for number in (1, 2, 3):
            writer.write_round(sample_round(number, epsilon=0.5 * number))
        audits = [MetricValue("audit.recovery@0.5", 0.875, 3), MetricValue("audit.indicator", math.nan, 3)]
        audits += [
            MetricValue("audit.ranking_users@10%", share, 3, tag="bucket", group=group)
            for group, share in (("0% to 50%", 0.25), ("50% to 100%", 0.75))
        ]
        writer.write("evaluations", sample_evaluation(3, audits))
        writer.finish()
    (tmp_path / "manifest.json").write_text(
        '{"secure_aggregation": {"run": "secagg, shielded"}}', encoding="utf-8"
    )
    page = Page(report_of([tmp_path]))
    assert "Privacy" in page.texts["summary"]
    assert page.figures["audit.recovery@0.5"] == 0.875
    assert page.figures["ranking_users@10%[50% to 100%]"] == 0.75
    assert "Users by what the ranking attack finds of theirs" in page.texts["figcaption"]
    assert "Epsilon spent" in page.texts["figcaption"]
    assert "secagg, shielded" in page.texts["td"]
    # Of the three devices of each round two were heard, both in the clear.
    assert "Updates by the way they came" in page.texts["span"]
    assert page.figures["way[clear].device_rounds"] == 6
    assert page.figures["way[clear].share"] == 1.0


def test_an_infinite_epsilon_is_said_in_words(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.write_round(sample_round(1, epsilon=math.inf))
        writer.finish()
    assert "Epsilon is infinite" in report_of([tmp_path])


def test_several_runs_are_compared(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "other", rounds=3)
    output = tmp_path / "both.html"
    runs = [finished, tmp_path / "other"]
    assert execute(["report", *map(str, runs), "-o", str(output)]) == 0
    assert "2 runs" in capsys.readouterr().out
    text = output.read_text(encoding="utf-8")
    page = Page(text)
    assert page.headings == [
        "Did it hold what it promised, and by how much?",
        "How long does a round take, and what holds it up?",
        "Where do the bytes go?",
        "Who drops out, and why?",
        "What is the model worth for it?",
        "Everything else",
    ]
    assert "1 of 3 verdicts missed." in page.texts["p"]
    assert page.texts["strong"][0] == "1 of 3 missed"
    medians = [float(np.median(open_run(one).read("rounds", ["duration_s"])["duration_s"])) for one in runs]
    shown = [show(median, "s").replace("\N{NO-BREAK SPACE}", " ") for median in sorted(medians)]
    assert page.texts["strong"][1] == " to ".join(shown)
    assert page.figures[f"{finished.name}:rounds.completed"] == 6
    assert page.figures["other:rounds.completed"] == 3
    expected = figures_of_tables(finished)
    assert page.figures[f"{finished.name}:bytes.down"] == expected["bytes.down"]
    assert page.texts["li"].count("other") >= 4
    assert re.findall(r"https?:", text) == []


def test_runs_of_equal_names_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_run(tmp_path / folder / "run", rounds=1)
    page = Page(report_of([tmp_path / "a" / "run", tmp_path / "b" / "run"]))
    assert page.figures[f"{tmp_path / 'a' / 'run'}:rounds.completed"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "Missing argument"),
        (["report", "nowhere"], "no such directory"),
        (["report", "."], "not a run directory"),
    ],
)
def test_what_cannot_be_reported_exits_with_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_broken_files_of_a_run_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", rounds=1)
    (tmp_path / "run" / "verdicts.json").write_text("{", encoding="utf-8")
    assert execute(["report", str(tmp_path / "run")]) == 2
    assert "verdicts.json: is damaged" in capsys.readouterr().err
    (tmp_path / "run" / "verdicts.json").unlink()
    (tmp_path / "run" / "scenario.resolved.yaml").write_text("faults: [", encoding="utf-8")
    assert execute(["report", str(tmp_path / "run")]) == 2
    assert "scenario.resolved.yaml:1" in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_place_that_cannot_be_written_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["report", str(finished), "-o", str(tmp_path / "no" / "such.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_many_rounds_are_drawn_in_bins(tmp_path: Path) -> None:
    write_run(tmp_path / "short", rounds=10)
    with RunWriter(tmp_path, record_events=False) as writer:
        for number in range(1, 1002):
            writer.write_round(sample_round(number))
        writer.finish()
    text = report_of([tmp_path])
    page = Page(text)
    assert "Seconds on the critical path by stage; rounds, mean of every 3" in page.texts["span"]
    assert "1–3" in page.texts["th"]
    assert len(text) < 500_000
