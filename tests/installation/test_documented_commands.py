"""Every command of these pages runs as printed, in order, in a folder that was empty."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from documents import OUTPUT_COLUMNS, REASONS, ROOT, Line, lines_of, without_measured
from installed import Installation

from coordinator.cli.entry import execute

PAGES = (
    "README.md",
    *("docs/start.md", "docs/first-study.md", "docs/guide.md", "docs/coming-from.md"),
    *("docs/telemetry.md", "docs/pipelines.md", "docs/links.md", "docs/clock.md", "docs/model-files.md"),
)
"""The commands of the gallery are run where the site is built, those of tutorials in tests/plugins."""
TUTORIALS = (
    "adding-a-fault",
    "adding-a-reader",
    "adding-a-selector",
    "adding-a-sink",
    "adding-an-algorithm",
    "torch",
)
"""Their commands name files that the page makes."""
WITH_COMMANDS = [
    "README.md",
    *(
        f"docs/{path.relative_to(ROOT / 'docs')}"
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.stem not in TUTORIALS
    ),
]
NOT_RUN = {
    "docs/admission.md": "hosts, and addresses of others",
    "docs/gallery.md": "run where the site is built",
    "docs/scaling.md": "other hosts, and Ray; tests/cluster and tests/sweeps use it",
    "docs/studies.md": "ratings that have to be downloaded, and an hour",
    "docs/swarm.md": "minutes; tests/swarm searches in less",
    "docs/trackers.md": "tests/plugins reads back what a run gave",
    "docs/tuning.md": "minutes; tests/tuning tries less",
    "docs/your-ratings.md": "a file of ratings",
}
"""Pages whose commands are parsed here, and not run: why."""
STUDY = "docs/first-study.md"
LINES = [line for page in PAGES for line in lines_of(page)]


def test_the_pages_have_commands_and_few_are_not_run() -> None:
    assert len(LINES) > 60
    assert {line.reason for line in LINES} == {None, *REASONS}
    assert sum(line.reason is None for line in LINES) > 5 * sum(line.reason is not None for line in LINES)


@pytest.mark.parametrize("line", [line for line in LINES if line.reason], ids=lambda line: line.place)
def test_what_is_not_run_says_so_to_people(line: Line) -> None:
    assert line.reason is not None
    assert re.search(REASONS[line.reason], line.said), line.said


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_verbs_options_and_names_exist(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    for name in ("ratings.csv", "fleet.token", "17.token"):
        Path(name).touch()
    for line in lines_of(page):
        for arguments in line.commands:
            assert execute(arguments) == 0, f"{line.place}: {line.text}\n{capsys.readouterr().err}"


def test_pages_whose_commands_are_not_run_say_why() -> None:
    with_commands = {page for page in WITH_COMMANDS if any(True for _ in lines_of(page))}
    assert with_commands == {*PAGES, *NOT_RUN}


def test_an_option_that_does_not_exist_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    (arguments,) = Line("page:1", "recfleet run quickstart --sed 8 > out", None, "").commands
    assert arguments == ["run", "quickstart", "--sed", "8"]
    assert execute(arguments) == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_order(page: str, tmp_path: Path, installation: Installation) -> None:
    for line in lines_of(page):
        if line.reason is not None:
            continue
        run = installation.run_until_interrupted if line.goes_on else installation.run
        done = run(line.text, tmp_path, COLUMNS=str(OUTPUT_COLUMNS))
        assert done.returncode in line.codes, (
            f"{line.place}: {line.text}\nexits with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        if line.output is not None:
            assert without_measured(done.stdout) == without_measured(line.output), (
                f"{line.place}: run it with COLUMNS={OUTPUT_COLUMNS} and copy its output to the page"
            )


def test_the_study_has_eight_commands_and_shows_what_each_prints() -> None:
    lines = list(lines_of(STUDY))
    assert len(lines) <= 8
    silent = [line.text for line in lines if line.output is None]
    assert [text.partition(" ")[0] for text in silent] == ["python3", "awk"]
